"""The conversations of all users with one engine, from the first question to the last answer."""

from trtllm_kvfix.engine import recite
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.loop import Engine
from trtllm_kvfix.engine.machine import Machine
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.tools.demo.chat import ANSWER_MAX, USERS, Answer, Chat

HANGS_UP_AFTER = 3  # answers of others
STEPS_MAX = 5000  # a chat takes some hundred


class Session:
    """The last user comes late, and just before a stranger sends the same notes and hangs up in the middle of them."""

    def __init__(self, machine: Machine, config: EngineConfig) -> None:
        self.engine = Engine(machine, recite.reciter(config.length_max), config)
        self._chats = [Chat(user) for user in USERS]
        self._live: dict[int, Chat] = {}
        self._requests = 0
        self._stranger: Request | None = None

    def run(self) -> list[Answer]:
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
            self._stranger = Request(self._requests, recite.encode(late.said), ANSWER_MAX)
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
