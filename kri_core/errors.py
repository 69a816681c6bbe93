"""Every error a user can meet; the class decides the exit code of the command line."""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    """Class and message of an exception that was raised elsewhere, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


class KriError(Exception):
    """A failure whose message says what came, what was wanted and what to do."""

    exit_code = 1


class ConfigError(KriError):
    """A stack, flag or parameter that cannot mean anything."""

    exit_code = 2


class PluginError(KriError):
    """A plugin that is missing, broken, incompatible, or broke its hook's promise."""

    exit_code = 3


class ArtifactError(KriError):
    """A cartridge or prior that is damaged, foreign, or belongs to something else."""

    exit_code = 4


class EngineError(KriError):
    """An engine (torch, transformers, vLLM) or model that is missing or cannot do this."""

    exit_code = 5
