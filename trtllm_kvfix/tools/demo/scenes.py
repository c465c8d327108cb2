"""Users chat with an engine, once without a fix and once with all: what they should read, and what they read.

The model's answers can be read: it recites. Its weights are constructed, not trained. The first layer's heads look one
to ten tokens back, by rotary positions alone, and write what they find there beside each token. The second layer's head
is an induction head: it looks for an earlier place whose last ten tokens are the same as now, and says what follows
there. Both layers read the paged KV cache. So a wrong block, or a block with another prompt's text, shows as wrong
letters, and often as another user's.
"""

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

import numpy as np

from trtllm_kvfix.canary.canary import BLOCKS_PER_STEP
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig, check_id
from trtllm_kvfix.engine.loop import Engine
from trtllm_kvfix.engine.machine import Machine, open_machine
from trtllm_kvfix.engine.model import Array, Layer, Model, rotary
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.hazards import table
from trtllm_kvfix.hazards.table import Scene
from trtllm_kvfix.tools.demo.report import AnswerRead, ChatOutcome, SceneOutcome

# ---- the model that recites ----

# A letter is six bits, and a seventh for how loud it is: adapter 1 shouts.
QUIET = "\nabcdefghijklmnopqrstuvwxyz .,:;?'-()0123456789/+=*&%$#<>[]{}|~`"
LOUD = '\rABCDEFGHIJKLMNOPQRSTUVWXYZ_!"@^\\¡¿«»⓪①②③④⑤⑥⑦⑧⑨±¬÷§¶¤¥£¢©®°¹²³µª'
LETTERS = QUIET + LOUD
END = LETTERS.index("\n")
LOOKS_BACK = 10
BITS = 6
HEAD_SIZE = 64
SHARP = 40.0  # how much the place one token away counts less
MATCH = 1000.0  # for each bit of the last ten tokens
EARLY = 2.0  # for each position: of equal places the first is taken

# Where things stand in a token's vector.
TOKEN, ONE, POSITION = slice(0, BITS + 1), BITS + 1, BITS + 2
BEFORE = BITS + 3  # what stands one back, two back, ...
SAID = BEFORE + LOOKS_BACK * BITS
WIDTH = SAID + BITS + 1
LOUDNESS = SAID + BITS


def encode(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def reciter(positions: int) -> Model:
    """For sequences of up to this many tokens."""
    cosines, sines = rotary(positions, HEAD_SIZE)
    codes = _codes()
    embedding = np.zeros((len(LETTERS), WIDTH), np.float32)
    embedding[:, TOKEN] = codes
    embedding[:, ONE] = 1
    place = np.zeros((positions, WIDTH), np.float32)
    place[:, POSITION] = np.arange(positions)
    unembedding = np.zeros((WIDTH, len(LETTERS)), np.float32)
    unembedding[SAID:] = codes.T
    adapters_in = np.zeros((2, WIDTH, 1), np.float32)
    adapters_out = np.zeros((2, 1, WIDTH), np.float32)
    adapters_in[1, LOUDNESS], adapters_out[1, 0, LOUDNESS] = 1, -2
    layers = (_looks_back(cosines, sines), _finds())
    return Model(
        embedding, layers, unembedding, adapters_in, adapters_out, cosines, sines, place, 1, HEAD_SIZE, normed=False
    )  # fmt: skip


def _codes() -> Array:
    """[letters, 7]: the bits of each, as 1 and -1; the last is how loud."""
    numbers = np.arange(len(LETTERS))
    bits = numbers[:, None] >> np.arange(BITS + 1) & 1
    return (bits * 2 - 1).astype(np.float32)


def _looks_back(cosines: Array, sines: Array) -> Layer:
    """All keys are one vector, rotated by the position; head k's query is the same vector, rotated k back."""
    half = HEAD_SIZE // 2
    query = np.zeros((WIDTH, LOOKS_BACK, HEAD_SIZE), np.float32)
    key = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    value = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    out = np.zeros((LOOKS_BACK, HEAD_SIZE, WIDTH), np.float32)
    key[ONE, :half] = 1
    value[:BITS, :BITS] = np.eye(BITS)
    for head in range(LOOKS_BACK):
        back = head + 1
        query[ONE, head, :half] = SHARP * cosines[back]
        query[ONE, head, half:] = -SHARP * sines[back]
        out[head, :BITS, BEFORE + head * BITS : BEFORE + (head + 1) * BITS] = np.eye(BITS)
    return Layer(query.reshape(WIDTH, -1), key, value, out.reshape(-1, WIDTH), rotary=True)


def _finds() -> Layer:
    """A key is what stands before its token, a query what stands up to now, and a value the token."""
    query = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    key = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    value = np.zeros((WIDTH, HEAD_SIZE), np.float32)
    out = np.zeros((HEAD_SIZE, WIDTH), np.float32)
    dims = LOOKS_BACK * BITS
    key[BEFORE : BEFORE + dims, :dims] = np.eye(dims)
    key[POSITION, dims] = -1
    query[:BITS, :BITS] = MATCH * np.eye(BITS)
    query[BEFORE : BEFORE + dims - BITS, BITS:dims] = MATCH * np.eye(dims - BITS)
    query[ONE, dims] = EARLY
    value[TOKEN, : BITS + 1] = np.eye(BITS + 1)
    out[: BITS + 1, SAID:] = np.eye(BITS + 1)
    return Layer(query, key, value, out, rotary=False)


# ---- the chat ----

ANSWER_MAX = 48
SHOUTS = 1  # the adapter
HUSHED = str.maketrans(LOUD, QUIET)
SHOUTED = str.maketrans(QUIET, LOUD)
TRACE_MIN = 6  # letters in a row that show whose notes were read


def quiet(text: str) -> str:
    """The same letters, not shouted."""
    return text.translate(HUSHED)


def loud(text: str) -> str:
    return text.translate(SHOUTED)


@dataclass(frozen=True)
class User:
    name: str
    notes: str
    asks: tuple[str, ...]  # each begins a line of the notes
    adapter: int = 0

    def expected(self, turn: int) -> str:
        """The rest of the line."""
        begin = self.notes.index(self.asks[turn]) + len(self.asks[turn])
        text = self.notes[begin : self.notes.index("\n", begin)]
        return loud(text) if self.adapter == SHOUTS else text


_SHIP = """the ferry leaves from the north quay at nine.
captain mora keeps a parrot called admiral.
our cargo is forty crates of lemons and salt.
the lighthouse keeper owes me eleven coins.
if the fog comes down, wait for two short whistles.
"""

USERS = (
    User("ada", _SHIP, ("captain mora keeps ", "if the fog comes ")),
    User("ben", """sourdough rises for fourteen hours in the cellar.
the baker's daughter hides the best rolls for me.
rye flour comes on tuesdays, from the old mill.
never open the left oven before it has sung.
grandmother's recipe asks for a spoon of honey.
""", ("the baker's daughter ", "never open the left ")),
    User("cleo", """saturn stands above the chimney this evening.
my telescope came from a monastery in the hills.
the comet returns when i am seventy years old.
we count shooting stars on the roof of the school.
professor lund still believes in the ninth planet.
""", ("the comet returns ", "professor lund still "), SHOUTS),
    User("dan", _SHIP, ("our cargo is forty ", "the lighthouse keeper ")),
    User("eve", """tomatoes want the sunny wall behind the shed.
the hedgehog under the roses is named bertram.
water the ferns with rain, and with nothing else.
our neighbour measures her pumpkins every night.
the bees moved into the chimney last summer.
""", ("the hedgehog under ", "our neighbour measures "), SHOUTS),
    User("finn", """the night train stops in virlund for a minute.
seat forty two has a window that does not close.
the conductor reads poems to whoever cannot sleep.
my sister waits on platform seven with a lantern.
between the tunnels one can see the frozen lake.
""", ("the conductor reads ", "my sister waits on ")),
)  # fmt: skip


@dataclass
class Chat:
    """One user's conversation: each turn repeats the turns before it."""

    user: User
    said: str
    answers: list[AnswerRead] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return len(self.answers) == len(self.user.asks)

    def next_request(self, request_id: int) -> Request:
        self.said += "\n" + self.user.asks[len(self.answers)]
        stop = LETTERS.index("\r") if self.user.adapter == SHOUTS else END
        return Request(request_id, encode(self.said), ANSWER_MAX, self.user.adapter, stop)

    def take(self, request: Request) -> None:
        read, expected = decode(request.answer), self.user.expected(len(self.answers))
        self.said += read
        right = read == expected
        answer = AnswerRead(
            user=self.user.name,
            turn=len(self.answers) + 1,
            asked=self.user.asks[len(self.answers)],
            expected=expected,
            read=read,
            right=right,
            from_whom=None if right else from_whom(self.user, read),
            in_another_voice=not right and quiet(read) == quiet(expected),
        )
        self.answers.append(answer)


def from_whom(reader: User, read: str) -> str | None:
    """The user whose notes contain the longest part of the answer, if the reader's own contain a shorter one."""
    read = quiet(read)
    shared = {user.name: _longest(read, user.notes) for user in USERS if user.notes != reader.notes}
    best = max(shared, key=lambda name: shared[name])
    return best if shared[best] >= TRACE_MIN and shared[best] > _longest(read, reader.notes) else None


def _longest(read: str, notes: str) -> int:
    return SequenceMatcher(None, read, notes, autojunk=False).find_longest_match().size


HANGS_UP_AFTER = 3  # answers of others
STEPS_MAX = 5000  # a chat takes some hundred


class Session:
    """The last user comes late, and just before a stranger sends the same notes and hangs up in the middle of them."""

    def __init__(self, machine: Machine, config: EngineConfig) -> None:
        self.engine = Engine(machine, reciter(config.length_max), config)
        self._chats = [Chat(user, user.notes) for user in USERS]
        self._live: dict[int, Chat] = {}
        self._requests = 0
        self._stranger: Request | None = None

    def run(self) -> list[AnswerRead]:
        """Answers in the order of users and turns."""
        *early, late = self._chats
        for chat in early:
            self._ask(chat)
        while not all(chat.over for chat in self._chats):
            if not self.engine.busy or self.engine.steps > STEPS_MAX:
                raise KvfixError(f"the chat does not end: {self.engine.steps} steps, and answers are missing")
            for request in self.engine.step():
                chat = self._live.pop(request.request_id)
                chat.take(request)
                if not chat.over:
                    self._ask(chat)
            self._come_and_go(late)
        answers = [answer for chat in self._chats for answer in chat.answers]
        self.engine.cache.core.check_invariants()
        return answers

    def close(self) -> None:
        self.engine.close()

    def _come_and_go(self, late: Chat) -> None:
        if self._stranger is None and sum(len(chat.answers) for chat in self._chats) >= HANGS_UP_AFTER:
            self._requests += 1
            self._stranger = Request(self._requests, encode(late.said), ANSWER_MAX)
            self.engine.submit(self._stranger)
        elif self._stranger is not None and not self._stranger.finished and self._is_enough(self._stranger):
            self.engine.cancel(self._stranger)
            self._ask(late)

    def _is_enough(self, stranger: Request) -> bool:
        """Its second chunk has been given to the device, or all of it."""
        given = stranger.context_current_position
        return given - stranger.tokens_reused > self.engine.config.tokens_max or given == len(stranger.prompt)

    def _ask(self, chat: Chat) -> None:
        self._requests += 1
        self._live[self._requests] = chat
        self.engine.submit(chat.next_request(self._requests))


SCENES = tuple(hazard.scene for hazard in table.HAZARDS if hazard.scene is not None)


def choose(choices: Sequence[str], manager: str | None) -> list[Scene]:
    """choices: `ID=off` shows only what is lost without that fix, `ID=on` leaves its scene out."""
    off: set[str] = set()
    on: set[str] = set()
    for choice in choices:
        fix, _, word = choice.partition("=")
        if word not in ("off", "on"):
            raise SettingsError(f"--fix is '{choice}'; write ID=off or ID=on, with an ID of {', '.join(HAZARDS)}")
        check_id(fix)
        (off if word == "off" else on).add(fix)
    wanted = (off or set(HAZARDS)) - on
    if not wanted:
        raise SettingsError("--fix: every fix is on, so there is nothing to show")
    scenes = [scene for scene in SCENES if scene.fix in wanted]
    if manager is None:
        return scenes
    if manager == "native" and not off:  # it cannot make this mistake: an error only where somebody asks for it
        scenes = [scene for scene in scenes if scene.fix != "computed-blocks"]
    chosen = [replace(scene, config={**scene.config, "manager": manager}) for scene in scenes]
    for scene in chosen:
        config_of(scene, off={scene.fix})  # refuses what cannot be
    return chosen


def with_canary(scene: Scene) -> Scene:
    return replace(scene, config={**scene.config, "canary": BLOCKS_PER_STEP})


def play(scene: Scene, device: str, seed: int) -> SceneOutcome:
    config = config_of(scene)
    return SceneOutcome(
        fix=scene.fix,
        hazard=HAZARDS[scene.fix],
        title=scene.title,
        without=scene.without,
        manager=config.manager,
        control=_arm(config_of(scene, off={scene.fix}), device, seed),
        fixed=_arm(config, device, seed),
    )


def config_of(scene: Scene, off: Collection[str] = ()) -> EngineConfig:
    return EngineConfig(late_every=1, **scene.config, off=frozenset(off))


def _arm(config: EngineConfig, device: str, seed: int) -> ChatOutcome:
    with closing(open_machine(device, seed=seed)) as machine, closing(Session(machine, config)) as session:
        answers = session.run()
        canary = session.engine.cache.canary
        seen = None if canary is None else canary.report()
        return ChatOutcome(answers=answers, steps=session.engine.steps, canary=seen)
