"""AutoDeploy makes its manager itself, past `_util` and whatever was put there (surface 3.2)."""

from typing import Any

from ...pyexecutor.resource_manager import CacheTypeCpp, KVCacheManager


def make_kv_cache_manager(llm_args: Any, execution_stream: Any) -> Any:
    return KVCacheManager(
        llm_args.kv_cache_config,
        CacheTypeCpp.SELF,
        num_layers=llm_args.num_layers,
        num_kv_heads=1,
        head_dim=1,
        tokens_per_block=llm_args.kv_cache_config.tokens_per_block,
        max_seq_len=llm_args.max_seq_len,
        max_batch_size=llm_args.max_batch_size,
        max_num_tokens=llm_args.max_num_tokens,
        max_beam_width=llm_args.max_beam_width,
        execution_stream=execution_stream,
        enable_chunked_prefill=llm_args.enable_chunked_prefill,
    )
