"""`python -m trtllm_kvfix` is the command `trtllm-kvfix`."""

from trtllm_kvfix.cli import main

if __name__ == "__main__":
    main()
