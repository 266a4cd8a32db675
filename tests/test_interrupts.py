"""Ctrl-C and SIGTERM: what is asked, what stops at once, and which signals are echoes."""

import os
import signal
import threading

import pytest

from emcaps import interrupts
from emcaps.interrupts import asked_to_stop, sigterm_like_ctrl_c

SIGNALS = [signal.SIGINT, signal.SIGTERM]


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(interrupts, "time", clock)
    monkeypatch.setattr(interrupts, "_heard_at", -1.0)
    return clock


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_and_a_later_one_stops_at_once(clock, number):
    with asked_to_stop() as asked:
        assert not asked()
        send(number)
        assert asked()
        clock.now += 1.01
        with pytest.raises(KeyboardInterrupt):
            send(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_follows_soon_after_is_an_echo(clock, number):
    with asked_to_stop() as asked:
        send(number)
        clock.now += 0.99
        send(signal.SIGTERM)
        assert asked()
    with asked_to_stop(5.0) as asked:  # the first signal counts wherever the last one was heard
        send(number)
        assert asked()
        clock.now += 3.99
        send(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_by_an_exception_and_its_echo_does_not_disturb_what_cleans_up(clock, number):
    cleaned = False
    with sigterm_like_ctrl_c():
        try:
            send(number)
        except KeyboardInterrupt:
            send(number)
            send(signal.SIGTERM)
            cleaned = True
        assert cleaned
        clock.now += 1.01
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_what_ignores_ctrl_c_still_does():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with sigterm_like_ctrl_c():
            send(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_echo_of_a_signal_that_stopped_a_training_does_not_stop_what_follows_it(clock):
    with sigterm_like_ctrl_c():
        with asked_to_stop() as asked:
            send(signal.SIGTERM)
            assert asked()
        clock.now += 0.5
        send(signal.SIGTERM)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with sigterm_like_ctrl_c(), asked_to_stop():
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_other_threads_hear_nothing_and_change_nothing():
    before, seen = [signal.getsignal(number) for number in SIGNALS], []

    def work():
        with sigterm_like_ctrl_c(), asked_to_stop() as asked:
            seen.append((asked(), [signal.getsignal(number) for number in SIGNALS]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
