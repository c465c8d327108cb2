"""`commands.serve` finds here what it needs of the arguments."""

from .llm_args import update_llm_args_with_extra_dict, update_llm_args_with_extra_options

__all__ = ["update_llm_args_with_extra_dict", "update_llm_args_with_extra_options"]
