"""The commands of the control program about limits and priority."""

from __future__ import annotations

import re

from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.client_limits import (
    parse_limit_bytes,
    parse_number,
    parse_percentage,
    render_limit,
)
from slurm_colloc_lab.simgpu.mps.command_answer import Conversation, read_gpus

_BAD_PERCENTAGE = "Invalid percentage, expected between (0.0, 100.0]"


def get_default_percentage(conversation: Conversation) -> None:
    """Show the share of the multiprocessors that the next server starts with."""
    conversation.say(f"{conversation.daemon.defaults.percentage:.1f}")


def set_default_percentage(conversation: Conversation) -> None:
    """Set it; what was there before is shown where the value is bad."""
    if not conversation.may_set_defaults():
        return
    value = parse_percentage(conversation.word(0))
    if value is None:
        conversation.daemon.log(_BAD_PERCENTAGE)
    else:
        conversation.daemon.defaults.percentage = value
    get_default_percentage(conversation)


def get_percentage(conversation: Conversation) -> None:
    """Show a server's share for new clients."""
    link = conversation.find_link()
    if link is not None:
        conversation.say(f"{link.read_percentage():.1f}")


def set_percentage(conversation: Conversation) -> None:
    """Set it; what was there before is shown where the value is bad."""
    link = conversation.find_own_link()
    if link is None:
        return
    value = parse_percentage(conversation.word(1))
    if value is None:
        conversation.daemon.log(_BAD_PERCENTAGE)
    else:
        link.write_percentage(value)
    conversation.say(f"{link.read_percentage():.1f}")


def _choose_ordinal(conversation: Conversation, word: str) -> int | str | None:
    """The ordinal that a word means, a UUID that the daemon does not see, or None for neither."""
    takes_uuids = conversation.daemon.profile.limits_by_uuid
    if takes_uuids and word.startswith(("GPU-", "MIG-")):
        uuids = [gpu.uuid for gpu in read_gpus()]
        return uuids.index(word) if word in uuids else word
    ordinal = parse_number(word)
    if 0 <= ordinal < wire_format.DEVICES:
        return ordinal
    conversation.daemon.log(
        f"Invalid device identifier format: {word}" if takes_uuids else "Invalid device ordinal!"
    )
    return None


def get_default_limit(conversation: Conversation) -> None:
    """Show a GPU's pinned limit for the next server; nothing where there is none."""
    defaults = conversation.daemon.defaults
    ordinal = _choose_ordinal(conversation, conversation.word(0))
    if ordinal is None:
        return
    if isinstance(ordinal, str):
        limit_bytes = defaults.bytes_by_uuid.get(ordinal, 0)
    else:
        limit_bytes = defaults.bytes_by_ordinal[ordinal]
    if limit_bytes:
        conversation.say(render_limit(limit_bytes))
    else:
        conversation.daemon.log("No default pinned memory limit set for the device!")


def set_default_limit(conversation: Conversation) -> None:
    """Set it; what is no value takes it away."""
    if not conversation.may_set_defaults():
        return
    defaults = conversation.daemon.defaults
    word, value = conversation.word(0), conversation.word(1)
    if parse_number(word) == 0 and re.match(r"[+-]?\d", word) is None:
        # What is not a number ends the reading: ordinal 0 and no value.
        value = value if conversation.daemon.profile.limits_by_uuid else ""
    is_known = word.startswith(("GPU-", "MIG-")) or 0 <= parse_number(word) < wire_format.DEVICES
    if conversation.daemon.profile.limits_by_uuid and not is_known:
        conversation.daemon.log(f"set_default_device_pinned_mem_limit {conversation.text}.")
    ordinal = _choose_ordinal(conversation, word)
    if isinstance(ordinal, str):
        defaults.bytes_by_uuid[ordinal] = parse_limit_bytes(value)
    elif ordinal is not None:
        defaults.bytes_by_ordinal[ordinal] = parse_limit_bytes(value)


def get_limit(conversation: Conversation) -> None:
    """Show a server's pinned limit for new clients; nothing where there is none."""
    link = conversation.find_link()
    if link is None:
        return
    ordinal = _choose_ordinal(conversation, conversation.word(1))
    if isinstance(ordinal, int) and (limit_bytes := link.read_limit_bytes(ordinal)):
        conversation.say(render_limit(limit_bytes))


def set_limit(conversation: Conversation) -> None:
    """Set it."""
    link = conversation.find_own_link()
    if link is None:
        return
    ordinal = _choose_ordinal(conversation, conversation.word(1))
    if isinstance(ordinal, int):
        link.write_limit_bytes(ordinal, parse_limit_bytes(conversation.word(2)))


def get_default_priority(conversation: Conversation) -> None:
    """Show the priority of new clients."""
    conversation.say(str(conversation.daemon.defaults.priority))


def set_default_priority(conversation: Conversation) -> None:
    """Set it, for running servers too."""
    if not conversation.may_set_defaults():
        return
    priority = conversation.number(0)
    if priority not in (0, 1):
        conversation.say("Invalid priority value - must be 0 or 1!")
        return
    conversation.daemon.defaults.priority = priority
    for entry in conversation.daemon.servers:
        if entry.link is not None:
            entry.link.write_priority(priority)
