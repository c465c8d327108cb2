"""Programs that nobody here wrote the racing parts of: `python -m watch.gpu.clean NAME SECONDS`.

Each prints a digest of what it computed, the same in every run, so that a run under hostrace can be compared.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PROGRAMS: dict[str, Callable[[float], Any]] = {}
STEPS = 60  # of the part that is digested; what follows only takes time


def program(run: Callable[[float], Any]) -> Callable[[float], Any]:
    PROGRAMS[run.__name__] = run
    return run


def for_seconds(seconds: float) -> Iterator[int]:
    end = time.monotonic() + seconds
    step = 0
    while step < STEPS or time.monotonic() < end:
        yield step
        step += 1


class Digest:
    def __init__(self) -> None:
        self.sum = hashlib.sha256()

    def add(self, step: int, value: Any) -> None:
        if step < STEPS:
            self.sum.update(repr(value).encode())


@program
def dataloader(seconds: float) -> Any:
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    data = TensorDataset(torch.arange(8192 * 64, dtype=torch.float32).view(8192, 64), torch.arange(8192))
    loader = DataLoader(data, batch_size=128, pin_memory=True, num_workers=2, persistent_workers=True)
    digest, step = Digest(), 0
    end = time.monotonic() + seconds
    while step < STEPS or time.monotonic() < end:
        for features, labels in loader:
            on_device = features.to("cuda", non_blocking=True)
            digest.add(step, (float(on_device.sum()), int(labels.to("cuda", non_blocking=True).sum())))
            step += 1
    return digest


@program
def training(seconds: float) -> Any:
    import torch  # noqa: PLC0415

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    digest = Digest()
    for step in for_seconds(seconds):
        features = torch.randn(64, 256).pin_memory().to("cuda", non_blocking=True)
        loss = model(features).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.add(step, loss.item())
    return digest


@program
def generation(seconds: float) -> Any:
    import torch  # noqa: PLC0415
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_head=4, n_embd=128)).cuda().eval()
    prompt = torch.arange(16).view(1, 16).cuda()
    digest = Digest()
    end = time.monotonic() + seconds
    while True:
        out = model.generate(prompt, max_new_tokens=STEPS, do_sample=False, pad_token_id=0)
        digest.add(0, out.tolist())
        if time.monotonic() > end:
            return digest
        digest.add(STEPS, None)
        digest = Digest()


@program
def trainer(seconds: float) -> Any:
    import tempfile  # noqa: PLC0415

    import torch  # noqa: PLC0415
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: PLC0415

    torch.manual_seed(1)
    rows = [{"input_ids": torch.arange(at, at + 32), "labels": torch.arange(at, at + 32)} for at in range(512)]
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=int(STEPS + 20 * seconds),
            per_device_train_batch_size=8,
            report_to=[],
            save_strategy="no",
            dataloader_num_workers=2,
            disable_tqdm=True,
            seed=1,
        )
        Trainer(model=model, args=arguments, train_dataset=rows).train()
    digest = Digest()
    digest.add(0, torch.isfinite(model.transformer.wte.weight).all().item())
    return digest


@program
def accelerated(seconds: float) -> Any:
    import torch  # noqa: PLC0415
    from accelerate import Accelerator  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    torch.manual_seed(1)
    accelerator = Accelerator()
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(2048, 64)), batch_size=64, pin_memory=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    digest, step = Digest(), 0
    end = time.monotonic() + seconds
    while step < STEPS or time.monotonic() < end:
        for (features,) in loader:
            loss = model(features).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            digest.add(step, loss.item())
            step += 1
    return digest


@program
def lightning_fit(seconds: float) -> Any:
    import lightning  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    lightning.seed_everything(1)

    class Model(lightning.LightningModule):  # type: ignore[misc]  # its types are not installed here
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    loader = DataLoader(TensorDataset(torch.randn(2048, 64)), batch_size=64, pin_memory=True, num_workers=2)
    model = Model()
    lightning.Trainer(
        max_steps=int(STEPS + 50 * seconds),
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        accelerator="gpu",
        devices=1,
    ).fit(model, loader)
    digest = Digest()
    digest.add(0, torch.isfinite(model.layer.weight).all().item())
    return digest


@program
def graphs(seconds: float) -> Any:
    import torch  # noqa: PLC0415

    torch.manual_seed(1)
    model = torch.nn.Linear(256, 256).cuda()
    host = torch.zeros(64, 256).pin_memory()
    inputs, out = torch.zeros(64, 256, device="cuda"), torch.zeros(64, 256).pin_memory()
    with torch.no_grad():
        model(inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            inputs.copy_(host, non_blocking=True)
            out.copy_(model(inputs), non_blocking=True)
    digest = Digest()
    for step in for_seconds(seconds):
        host.fill_(step % 7)
        graph.replay()
        torch.cuda.current_stream().synchronize()
        digest.add(step, float(out.sum()))
    return digest


@program
def cupy_arrays(seconds: float) -> Any:
    import cupy  # noqa: PLC0415
    import numpy  # noqa: PLC0415

    host = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(1 << 16), numpy.int32)
    stream = cupy.cuda.Stream(non_blocking=True)
    digest = Digest()
    for step in for_seconds(seconds):
        host[:] = step % 100
        with stream:
            device = cupy.empty(host.shape, cupy.int32)
            device.set(host, stream=stream)
            device *= 2
            device.get(stream=stream, out=host)
        stream.synchronize()
        digest.add(step, int(host.sum()))
    return digest


@program
def jax_steps(seconds: float) -> Any:
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415
    import numpy  # noqa: PLC0415

    step_of = jax.jit(lambda weights, inputs: weights + jnp.dot(inputs.T, inputs) * 1e-3)
    weights = jnp.zeros((64, 64))
    digest = Digest()
    for step in for_seconds(seconds):
        inputs = jax.device_put(numpy.full((32, 64), step % 5, numpy.float32))
        weights = step_of(weights, inputs)
        digest.add(step, float(weights.sum()))
    return digest


@program
def triton_kernel(seconds: float) -> Any:
    import torch  # noqa: PLC0415

    fused = torch.compile(lambda x: (x * 2 + 1).relu().sum())
    digest = Digest()
    for step in for_seconds(seconds):
        x = torch.full((4096,), float(step % 9)).pin_memory().to("cuda", non_blocking=True)
        digest.add(step, float(fused(x)))
    return digest


@program
def offloaded_activations(seconds: float) -> Any:
    import torch  # noqa: PLC0415

    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))).cuda()
    digest = Digest()
    for step in for_seconds(seconds):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(torch.full((64, 256), 0.01, device="cuda")).square().mean()
        loss.backward()
        digest.add(step, loss.item())
    return digest


if __name__ == "__main__":
    print(sys.argv[1], PROGRAMS[sys.argv[1]](float(sys.argv[2])).sum.hexdigest())
