#include <string>

#include "cpu.h"
#include "moelab.h"
#include "registry.h"

// CMakeLists.txt defines these; JSON strings without quotes or backslashes inside.
extern "C" int32_t moelab_abi_version(void) {
    return MOELAB_ABI_VERSION;
}

extern "C" const char* moelab_build_info(void) {
    static const std::string text = [] {
        std::string isas;
        for (int i = 0; i < moelab::isa_count(); ++i)
            isas += std::string(i ? ", " : "") + "\"" + moelab::isa_at(i)->name + "\"";
        return std::string("{\"version\": \"" MOELAB_VERSION "\", \"git_commit\": \"" MOELAB_GIT_COMMIT
                           "\", \"compiler\": \"" MOELAB_COMPILER "\", \"flags\": \"" MOELAB_FLAGS
                           "\", \"target\": \"" MOELAB_TARGET "\", \"isas\": [") +
               isas + "], \"cpu\": \"" + moelab::cpu_part() + "\", \"cpu_features\": \"" +
               moelab::feature_names(moelab::cpu_features()) + "\"}";
    }();
    return text.c_str();
}
