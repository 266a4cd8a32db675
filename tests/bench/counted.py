"""EM routing of one image by equations (1) to (17) of triton_kernels/README.md, in numbers that count what is done.

Only what happens to elements of votes is counted: everything that is done once per edge or per parent runs on plain
floats. Every child is connected to every parent.
"""

from __future__ import annotations

import math

from emcaps.routing.settings import routing_lambda

EPSILON = 1e-9
SIDE = range(4)
ELEMENTS = range(16)


class Counted(float):
    """A float whose sums and products are counted, as are those of its results, until float() makes it plain."""

    operations = 0

    def _result(self, value):
        Counted.operations += 1
        return Counted(value)

    def __add__(self, other):
        return self._result(float(self) + float(other))

    def __sub__(self, other):
        return self._result(float(self) - float(other))

    def __rsub__(self, other):
        return self._result(float(other) - float(self))

    def __mul__(self, other):
        return self._result(float(self) * float(other))

    __radd__, __rmul__ = __add__, __mul__


def product(left, right, out):
    """`out` plus the 4x4 product, all flat."""
    return [
        sum((left[4 * row + k] * right[4 * k + column] for k in SIDE), start=out[4 * row + column])
        for row in SIDE
        for column in SIDE
    ]


def transposed(matrix):
    return [matrix[4 * column + row] for row in SIDE for column in SIDE]


def plain(values):
    return [float(value) for value in values]


def route(poses, activations, matrices, beta_u, beta_a, iterations, floor, mean_data, pose_bar, activation_bar):
    """Forward, then backward from the gradients of the outputs.

    Gives the parents' poses and activations, the gradients of poses, activations and matrices, and how many operations
    on elements of votes each of the two passes took.
    """
    children, parents = range(len(poses)), range(len(beta_u))
    edges = [(i, j) for i in children for j in parents]
    Counted.operations = 0
    votes = {(i, j): product([Counted(x) for x in poses[i]], matrices[i][j], [0.0] * 16) for i, j in edges}  # (1)
    share = dict.fromkeys(edges, 1 / len(parents))
    states = []
    for t in range(iterations):
        lamda = routing_lambda(t, 1.0)
        data = {(i, j): share[i, j] * activations[i] for i, j in edges}  # (2)
        state = {"share": share, "data": data, "parents": []}
        for j in parents:
            total = sum(data[i, j] for i in children)
            mean, spread = [], []
            for h in ELEMENTS:  # (3), (4)
                mean.append(float(sum((data[i, j] * votes[i, j][h] for i in children), 0.0)) / (total + EPSILON))
                squares = 0.0
                for i in children:
                    away = votes[i, j][h] - mean[h]
                    squares = squares + data[i, j] * (away * away)
                spread.append(float(squares) / (total + EPSILON))
            variance = [q + floor for q in spread]
            unit = sum(beta_u[j] + 0.5 * math.log(s2) for s2 in variance) / mean_data  # (5)
            logit = lamda * (beta_a[j] - unit * total)  # (6)
            active = 1 / (1 + math.exp(-logit))
            state["parents"].append((total, mean, spread, variance, unit, active, lamda))
        states.append(state)
        if t + 1 < iterations:  # (7)
            share = {}
            for i in children:
                joint = []
                for j in parents:
                    _, mean, _, variance, _, active, _ = state["parents"][j]
                    distance = 0.0
                    for h in ELEMENTS:
                        away = votes[i, j][h] - mean[h]
                        distance = distance + (away * away) * (1 / variance[h])
                    joint.append(math.log(active) - 0.5 * (sum(map(math.log, variance)) + float(distance)))
                weights = [math.exp(value - max(joint)) for value in joint]
                share |= {(i, j): weights[j] / sum(weights) for j in parents}
    forward, Counted.operations = Counted.operations, 0

    vote_bar = {edge: [0.0] * 16 for edge in edges}
    activations_bar = [0.0 for _ in children]
    mean_bar, variance_bar = pose_bar, [[0.0] * 16 for _ in parents]
    logit_bar = [activation_bar[j] * state[5] * (1 - state[5]) for j, state in enumerate(states[-1]["parents"])]
    for t in reversed(range(iterations)):
        share, data = states[t]["share"], states[t]["data"]
        away, data_bar = {}, {}
        for j in parents:
            total, mean, spread, variance, unit, _, lamda = states[t]["parents"][j]
            cost_bar = -lamda * logit_bar[j]  # (8)
            spread_bar = [variance_bar[j][h] + 0.5 * cost_bar * total / (mean_data * variance[h]) for h in ELEMENTS]
            a = [spread_bar[h] / (total + EPSILON) for h in ELEMENTS]  # (9), (10)
            b = [(mean_bar[j][h] - 2 * EPSILON * a[h] * mean[h]) / (total + EPSILON) for h in ELEMENTS]
            c = cost_bar * unit - sum(a[h] * spread[h] for h in ELEMENTS)
            for i in children:
                away[i, j] = [votes[i, j][h] - mean[h] for h in ELEMENTS]
                slope = sum(((a[h] * away[i, j][h] + b[h]) * away[i, j][h] for h in ELEMENTS), 0.0)  # (11)
                data_bar[i, j] = c + float(slope)
                for h in ELEMENTS:  # (12)
                    gradient = 2 * a[h] * away[i, j][h] + b[h]
                    vote_bar[i, j][h] = vote_bar[i, j][h] + data[i, j] * gradient
        inner = [sum(share[i, j] * data_bar[i, j] for j in parents) for i in children]  # (13)
        activations_bar = [old + new for old, new in zip(activations_bar, inner, strict=True)]
        if t == 0:
            break
        joint_bar = {(i, j): data[i, j] * (data_bar[i, j] - inner[i]) for i, j in edges}
        mean_bar, variance_bar, logit_bar = [], [], []
        for j in parents:
            _, mean, _, variance, _, active, _ = states[t - 1]["parents"][j]
            first, second = [0.0] * 16, [0.0] * 16
            for i in children:
                for h in ELEMENTS:
                    # The next round, which is the iteration before, needs this difference anyway: it counts there.
                    before = Counted(float(votes[i, j][h]) - mean[h])
                    weighted = joint_bar[i, j] * before
                    first[h] = first[h] + weighted  # (14)
                    second[h] = second[h] + weighted * before
                    vote_bar[i, j][h] = vote_bar[i, j][h] - weighted * (1 / variance[h])  # (15)
            sums = sum(joint_bar[i, j] for i in children)
            mean_bar.append([x / s2 for x, s2 in zip(plain(first), variance, strict=True)])
            variance_bar.append([0.5 * (x / s2**2 - sums / s2) for x, s2 in zip(plain(second), variance, strict=True)])
            logit_bar.append((1 - active) * sums)
    poses_bar = [[0.0] * 16 for _ in children]
    matrices_bar = [[[0.0] * 16 for _ in parents] for _ in children]
    for i, j in edges:
        poses_bar[i] = product(vote_bar[i, j], transposed(matrices[i][j]), poses_bar[i])  # (16)
        matrices_bar[i][j] = product(transposed(poses[i]), vote_bar[i, j], [0.0] * 16)  # (17)
    last = states[-1]["parents"]
    outputs = [state[1] for state in last], [state[5] for state in last]
    gradients = [plain(x) for x in poses_bar], activations_bar, [[plain(x) for x in row] for row in matrices_bar]
    return outputs, gradients, (forward, Counted.operations)
