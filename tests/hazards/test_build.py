"""Objects of upstream's whose constructors want a model."""

from trtllm_kvfix.hazards.build import unmade


class Engine:
    ended = 0

    def __init__(self, model: object) -> None:
        raise AssertionError(f"a model was asked for: {model}")

    def __del__(self) -> None:
        Engine.ended += 1

    def prepare(self) -> str:
        return f"{self.name()} of {self.mapping}"  # type: ignore[attr-defined]

    def name(self) -> str:
        return "upstream's"


def test_neither_constructor_nor_destructor_runs_and_what_is_given_is_there() -> None:
    made = unmade(Engine, mapping="one rank", name=lambda: "ours")
    assert isinstance(made, Engine)
    assert made.prepare() == "ours of one rank"
    del made
    assert Engine.ended == 0
