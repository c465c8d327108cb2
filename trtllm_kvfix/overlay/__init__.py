"""Makes the fixes arrive in a running TensorRT-LLM without touching its files (docs/support.md).

In the order in which a server meets them:

1. `launch` is `trtllm-kvfix run`: it checks the command (`hook_loss`) and the server's YAML (`server_config`), sets the
   variables, and leaves a `watcher` behind. `hook_file` is the persistent hook instead.
2. `import_hook` waits in every interpreter for `tensorrt_llm`, and then calls `process.begin`, which activates.
   Where the fixes are switched off it calls `bypass` instead, which takes `kvfix:` out of the server's YAML and answers
   on the port of metrics.
3. `activation` holds the settings, and says when the registry acts. `child_environment` carries the settings to child
   processes, also to those that MPI spawns. `server_config` takes them from the server's own YAML.
4. `registry` probes, applies and takes back. It knows every replacement: those of fixes, whose records are `fix`, and
   the others. `upstream` looks at what there is, and `signatures` whether it takes a call. `seam` replaces one
   attribute, `reach` tells a wrapper from another tool's replacement.
5. `start_gate` stops an engine in front of its start until the ranks have compared what each attests (`attest`).
   `releases` names the variant of a release.
6. While the engine runs, `recheck` looks again every two seconds, `fuse` counts the faults of our own code, and `vote`
   lets ranks change a batch together or not at all.
7. At the end, `server_end` writes the flight record, and shows an error of ours in one line.

Importing this package imports nothing: the start-up hook goes through it in every interpreter of an environment.
"""
