"""``ioprobe.toml`` -> typed settings, and errors that name the key."""

from ioprobe.config.places import InlineIgnore, Place
from ioprobe.config.read import FILE_NAME, Config, config_schema, find_config, load_config, parse_config
from ioprobe.config.types import (
    AnalyzeConfig,
    AttachConfig,
    BudgetsConfig,
    CheckConfig,
    CompareConfig,
    ConfigFile,
    FrameRule,
    HostConfig,
    PipelineConfig,
)

__all__ = [
    "FILE_NAME",
    "AnalyzeConfig",
    "AttachConfig",
    "BudgetsConfig",
    "CheckConfig",
    "CompareConfig",
    "Config",
    "ConfigFile",
    "FrameRule",
    "HostConfig",
    "InlineIgnore",
    "PipelineConfig",
    "Place",
    "config_schema",
    "find_config",
    "load_config",
    "parse_config",
]
