import pytest
import torch

from scalelab.training.servers.rules import Adag, Downpour, DynSgd, Elastic, rule_of
from scalelab.training.servers.served import Pace, ServedParameters, fill, flat

FETCHED = torch.tensor([1.0, 2.0])
OWN = torch.tensor([1.4, 1.2])


def test_downpour_adds_the_whole_change() -> None:
    served = torch.tensor([2.0, 2.0])
    answer = Downpour().serve(served, Downpour().message(OWN, FETCHED), staleness=3)
    assert served.tolist() == pytest.approx([2.4, 1.2])
    assert Downpour().adopt(OWN, answer).tolist() == served.tolist()


def test_adag_adds_the_change_per_step() -> None:
    served = torch.tensor([2.0, 2.0])
    answer = Adag(4).serve(served, Adag(4).message(OWN, FETCHED), staleness=3)
    assert served.tolist() == pytest.approx([2.1, 1.8])
    assert Adag(4).adopt(OWN, answer).tolist() == served.tolist()


def test_dynsgd_divides_the_change_by_one_plus_its_staleness() -> None:
    served = torch.tensor([2.0, 2.0])
    answer = DynSgd().serve(served, DynSgd().message(OWN, FETCHED), staleness=3)
    assert served.tolist() == pytest.approx([2.1, 1.8])
    assert DynSgd().adopt(OWN, answer).tolist() == served.tolist()


def test_elastic_averaging_moves_both_sides_equally_far() -> None:
    served, rule = torch.tensor([2.0, 2.0]), Elastic(0.25)
    answer = rule.serve(served, rule.message(OWN, FETCHED), staleness=3)
    assert served.tolist() == pytest.approx([1.85, 1.8])
    assert rule.adopt(OWN, answer).tolist() == pytest.approx([1.55, 1.4])


def test_the_options_of_a_trial_name_the_rule() -> None:
    assert type(rule_of({"rule": "downpour"}, 2)) is Downpour
    assert type(rule_of({"rule": "dynsgd"}, 2)) is DynSgd
    assert rule_of({"communication_window": 8}, 2) == Adag(8)
    assert rule_of({"rule": "elastic"}, 4) == Elastic(0.9 / 4)


def test_staleness_is_what_others_changed_in_between() -> None:
    served = ServedParameters(torch.zeros(1), DynSgd())
    change = torch.tensor([1.0])
    _, first = served.exchange(change, 0)
    _, second = served.exchange(change, 0)
    answer, _ = served.exchange(change, first)
    assert (first, second, served.version) == (1, 2, 3)
    assert answer.tolist() == pytest.approx([1 + 1 / 2 + 1 / 2])
    assert (served.staleness.mean, served.staleness.maximum) == (2 / 3, 1)


def test_an_answer_does_not_change_with_what_others_send_later() -> None:
    for rule in (Downpour(), Elastic(0.5)):
        served = ServedParameters(torch.zeros(1), rule)
        answer, version = served.exchange(torch.ones(1), 0)
        before = answer.tolist()
        served.exchange(torch.ones(1), version)
        assert answer.tolist() == before


def test_who_is_further_ahead_than_the_bound_waits() -> None:
    pace = Pace(2, bound=3)
    pace.advance(0, 3)
    assert pace.may_go_on(0)
    pace.advance(0, 1)
    assert not pace.may_go_on(0)
    assert pace.may_go_on(1)
    pace.advance(1, 1)
    assert pace.may_go_on(0)


def test_parameters_become_one_vector_and_come_back() -> None:
    layers = [torch.arange(6.0).view(2, 3), torch.tensor([7.0], dtype=torch.float64)]
    vector = flat(layers)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7]
    fill(layers, vector * 2)
    assert layers[0].tolist() == [[0, 2, 4], [6, 8, 10]]
    assert layers[1].tolist() == [14]
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7]
