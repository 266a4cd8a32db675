import torch

from emcaps.train.randomness import ExampleOrder, seed_for

CPU = torch.device("cpu")


def test_seed_for_differs_by_seed_purpose_and_number():
    seeds = {seed_for(seed, purpose, n) for seed in range(3) for purpose in ("a", "b") for n in range(10)}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_every_epoch_sees_every_example_once():
    order = ExampleOrder(10, 4, seed=0, device=CPU)
    seen = torch.cat([order.batch(step) for step in range(10)])
    for epoch in range(4):
        assert sorted(seen[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10))
    assert seen[:10].tolist() != seen[10:20].tolist()


def test_a_batch_may_be_larger_than_the_data():
    batch = ExampleOrder(3, 8, seed=0, device=CPU).batch(0)
    assert len(batch) == 8
    assert sorted(batch[:3].tolist()) == [0, 1, 2]


def test_a_step_does_not_depend_on_the_steps_before_it():
    straight = ExampleOrder(10, 4, seed=3, device=CPU)
    batches = [straight.batch(step).tolist() for step in range(9)]
    assert ExampleOrder(10, 4, seed=3, device=CPU).batch(7).tolist() == batches[7]
    assert ExampleOrder(10, 4, seed=4, device=CPU).batch(7).tolist() != batches[7]
