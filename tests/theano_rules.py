"""Update rules for the tests of ddl_theano, as users of Theano write them: each returns the updates of a function."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import theano
import theano.tensor as T

__all__ = ["RULES", "adam", "momentum", "rmsprop"]


def _state(parameter):
    return theano.shared(np.zeros_like(parameter.get_value()), broadcastable=parameter.broadcastable)


def _number(value):
    return T.cast(value, theano.config.floatX)


def momentum(gradients, parameters, lr=0.1, mu=0.9):
    updates = OrderedDict()
    for gradient, parameter in zip(gradients, parameters):
        velocity = _state(parameter)
        updates[velocity] = _number(mu) * velocity - _number(lr) * gradient
        updates[parameter] = parameter + updates[velocity]
    return updates


def adam(gradients, parameters, lr=0.02, beta1=0.9, beta2=0.999, epsilon=1e-4):
    updates = OrderedDict()
    count = theano.shared(np.zeros((), theano.config.floatX))
    updates[count] = count + _number(1)
    rate = _number(lr) * T.sqrt(1 - _number(beta2) ** updates[count]) / (1 - _number(beta1) ** updates[count])
    for gradient, parameter in zip(gradients, parameters):
        mean, square = _state(parameter), _state(parameter)
        updates[mean] = _number(beta1) * mean + _number(1 - beta1) * gradient
        updates[square] = _number(beta2) * square + _number(1 - beta2) * gradient**2
        updates[parameter] = parameter - rate * updates[mean] / (T.sqrt(updates[square]) + _number(epsilon))
    return updates


def rmsprop(gradients, parameters, lr=0.01, rho=0.9, epsilon=1e-4):
    updates = OrderedDict()
    for gradient, parameter in zip(gradients, parameters):
        square = _state(parameter)
        updates[square] = _number(rho) * square + _number(1 - rho) * gradient**2
        updates[parameter] = parameter - _number(lr) * gradient / T.sqrt(updates[square] + _number(epsilon))
    return updates


RULES = {"momentum": momentum, "adam": adam, "rmsprop": rmsprop}
