"""Models in vLLM, in a process of their own: `python engine.py JOB RESULT`, both JSON files.

JOB: {"models": [{"path", "options" (of LLM), "prompts" [[token ids]], "new_tokens", "record" (bool)}]}
RESULT: for each model {"tokens" [prompt][new], "logprobs" [prompt][new][vocabulary], "calls" (of our op, in each
worker), "routing" [prompt][layer][call]{"ids", "weights"}, "peak_bytes" (of the process, after loading), "threads"}.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

KV_BYTES = 64 << 20


def count(worker: Any) -> dict[str, Any]:
    """In a worker: counts calls that reach our library from here on."""
    import torch

    import moelab_kernels._torch as face
    from moelab_kernels import _openmp

    real = getattr(face, "uncounted", face.run)

    def run(*arguments: Any) -> None:
        face.calls += 1
        real(*arguments)

    face.calls, face.run, face.uncounted = 0, run, real
    return {"threads": torch.get_num_threads(), "limit": _openmp.threads.limit, "openmp": _openmp.loaded()}


def counted(worker: Any) -> int:
    import moelab_kernels._torch as face

    return face.calls


def record(calls: list[Any]) -> None:
    """Notes which experts the tokens take, on vLLM's kernels as on ours. For an engine inside this process."""
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernel

    real = FusedMoEKernel.apply

    def apply(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append({name: options[f"topk_{name}"].tolist() for name in ("ids", "weights")})
        return real(self, *arguments, **options)

    FusedMoEKernel.apply = apply


def peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def run(model: dict[str, Any], calls: list[Any]) -> dict[str, Any]:
    standard = {
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "kv_cache_memory_bytes": KV_BYTES,
        "max_num_seqs": 4,
        "max_logprobs": -1,
        "enable_prefix_caching": False,
    }
    llm = LLM(model=model["path"], **standard | model["options"])
    result: dict[str, Any] = {"peak_bytes": peak_bytes(), "workers": llm.collective_rpc(count), "routing": []}
    sampling = SamplingParams(
        temperature=0, max_tokens=model["new_tokens"], ignore_eos=True, detokenize=False, logprobs=-1
    )
    outputs = []
    for prompt in model["prompts"]:
        calls.clear()
        outputs += [o.outputs[0] for o in llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)]
        result["routing"].append(list(calls))
    result["tokens"] = [list(o.token_ids) for o in outputs]
    result["logprobs"] = [
        [[step[token].logprob for token in sorted(step)] for step in o.logprobs] if model.get("record") else []
        for o in outputs
    ]
    result["calls"] = llm.collective_rpc(counted)
    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    return result


def main() -> None:
    job, target = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    calls: list[Any] = []
    if any(model.get("record") for model in job["models"]):
        record(calls)
    target.write_text(json.dumps([run(model, calls) for model in job["models"]]))


if __name__ == "__main__":
    main()
