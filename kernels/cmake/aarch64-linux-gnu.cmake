# Cross-build for 64-bit Arm Linux from another machine, with Debian's or Ubuntu's cross compiler:
#
#     apt install g++-aarch64-linux-gnu
#     cmake -S kernels -B build-arm -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake && cmake --build build-arm
#
# With clang: -DMOELAB_CLANG=clang++-19 (the cross compiler's headers and libraries are used all the same).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

if(MOELAB_CLANG)
    string(REPLACE "clang++" "clang" clang_c ${MOELAB_CLANG})
    set(CMAKE_C_COMPILER ${clang_c})
    set(CMAKE_CXX_COMPILER ${MOELAB_CLANG})
    set(CMAKE_C_COMPILER_TARGET aarch64-linux-gnu)
    set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
else()
    set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
    set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MOELAB_CLANG)

# Programs of the build machine, libraries and headers of the target.
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
