"""The users, what they chat about, and how an answer is judged.

Each user gives the model notes, and asks by writing the beginning of one of their lines; the model recites the rest. So
a reader sees what the right answer was, and from whose notes a wrong one came.
"""

from dataclasses import dataclass, field
from difflib import SequenceMatcher

from trtllm_kvfix.engine import recite
from trtllm_kvfix.engine.request import Request

ANSWER_MAX = 48
SHOUTS = 1  # the adapter
HUSHED = str.maketrans(recite.LOUD, recite.QUIET)
SHOUTED = str.maketrans(recite.QUIET, recite.LOUD)
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
class Answer:
    user: str
    turn: int
    asked: str
    expected: str
    read: str
    from_whom: str | None = None  # from whose notes a wrong answer came, if from any

    @property
    def right(self) -> bool:
        return self.read == self.expected

    @property
    def in_another_voice(self) -> bool:
        return not self.right and quiet(self.read) == quiet(self.expected)


@dataclass
class Chat:
    """One user's conversation: each turn repeats the turns before it."""

    user: User
    said: str = ""
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.said = self.user.notes

    @property
    def over(self) -> bool:
        return len(self.answers) == len(self.user.asks)

    def next_request(self, request_id: int) -> Request:
        self.said += "\n" + self.user.asks[len(self.answers)]
        stop = recite.LETTERS.index("\r") if self.user.adapter == SHOUTS else recite.END
        return Request(request_id, recite.encode(self.said), ANSWER_MAX, self.user.adapter, stop)

    def take(self, request: Request) -> None:
        turn = len(self.answers)
        read = recite.decode(request.answer)
        answer = Answer(self.user.name, turn, self.user.asks[turn], self.user.expected(turn), read)
        if not answer.right:
            answer.from_whom = from_whom(self.user, answer)
        self.said += read
        self.answers.append(answer)


def from_whom(reader: User, answer: Answer) -> str | None:
    """The user whose notes contain the longest part of the answer, if the reader's own contain a shorter one."""
    read = quiet(answer.read)
    shared = {user.name: _longest(read, user.notes) for user in USERS if user.notes != reader.notes}
    best = max(shared, key=lambda name: shared[name])
    return best if shared[best] >= TRACE_MIN and shared[best] > _longest(read, reader.notes) else None


def _longest(read: str, notes: str) -> int:
    return SequenceMatcher(None, read, notes, autojunk=False).find_longest_match().size
