"""A worker without a model, for tests of the benchmark beside peers.

Run: python -m tests.benchmarks.fake_peer --seconds-a-token 0.01
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from benchmarks.peers.protocol import Answer, Question, serve


class Fake:
    """Answers with the ids 7, 8, 9, ... and with times that were asked for."""

    def __init__(self, wanted: argparse.Namespace) -> None:
        self.wanted = wanted

    def generate(self, question: Question) -> Answer:
        streams, outputs = len(question.prompts), question.outputs
        if self.wanted.mode == "chatty":
            os.write(1, b"a library prints\n")
        if self.wanted.mode == "dying":
            sys.exit("no such instruction")
        if self.wanted.mode == "stuck":
            time.sleep(30)
        if streams > self.wanted.most_streams:
            raise ValueError(f"no room for {streams} streams")
        ids = list(range(7, 7 + outputs - (self.wanted.mode == "short")))
        each = self.wanted.seconds_a_token
        return Answer(each, each * outputs, [ids for _ in range(streams)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="")
    parser.add_argument("--seconds-a-token", type=float, default=0.01)
    parser.add_argument("--most-streams", type=int, default=100)
    serve(Fake(parser.parse_args()), ("numpy",))


if __name__ == "__main__":
    main()
