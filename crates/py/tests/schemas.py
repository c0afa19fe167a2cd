"""What operators take, as their schemas state it."""


def kinds(target, known):
    """The kinds of an operator's arguments that have no default, or ``None`` if one of them is not ``known``."""
    found = []
    for argument in target._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or argument.has_default_value() and kind != "Tensor":
            break
        if kind not in known:
            return None
        found.append(kind)
    return found
