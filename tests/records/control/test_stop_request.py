from pathlib import Path
from threading import Event

import pytest
from waiting import wait_until

from scalelab.records.control.stop_request import StopRequests, request_stop


def wait_for(event: Event) -> None:
    assert event.wait(30)


def test_requests_reach_the_driver_and_are_answered(tmp_path: Path) -> None:
    drained, killed = Event(), Event()
    with StopRequests(tmp_path, look_every_s=0.01) as requests:
        requests.control(drained.set, killed.set)
        assert not requests.came
        request = request_stop(tmp_path, at_once=False)
        wait_for(drained)
        assert requests.came
        assert not killed.is_set()
        assert not request.exists()
        request_stop(tmp_path, at_once=True)
        wait_for(killed)


@pytest.mark.parametrize("content", ["{}", "", "[1]", "{"])
def test_what_cannot_be_read_is_a_request(tmp_path: Path, content: str) -> None:
    drained, killed = Event(), Event()
    with StopRequests(tmp_path, look_every_s=0.01) as requests:
        requests.control(drained.set, killed.set)
        (tmp_path / "driver.stop").write_text(content)
        wait_for(drained)
        assert not killed.is_set()


def test_what_was_meant_for_an_earlier_driver_is_dropped(tmp_path: Path) -> None:
    request = request_stop(tmp_path, at_once=True)
    with StopRequests(tmp_path, look_every_s=0.01) as requests:
        assert not request.exists()
        requests.control(lambda: None, lambda: None)
        assert not requests.came


def test_a_request_before_there_is_a_driver_runs_nothing(tmp_path: Path) -> None:
    with StopRequests(tmp_path, look_every_s=0.01) as requests:
        request_stop(tmp_path, at_once=False)
        wait_until(lambda: requests.came, "the request is heard")
        with pytest.raises(KeyboardInterrupt):
            requests.control(lambda: None, lambda: None)
