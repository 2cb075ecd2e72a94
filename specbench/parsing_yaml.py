"""YAML from outside: read strictly, whatever the file holds."""

from typing import Any

import yaml

from specbench.parsing import DEPTH, check_text, shown

YAML_BYTES = 1 << 20


class _Loader(yaml.SafeLoader):
    """Plain mappings, lists and scalars: nothing that stands for more than its text.

    An alias may multiply what it stands for, or hold itself.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"the alias *{event.anchor} is not supported", event.start_mark
            )
        self.depth += 1
        if self.depth > DEPTH:
            raise yaml.composer.ComposerError(
                None, None, f"nested more than {DEPTH} deep", self.peek_event().start_mark
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no {kind}", node.start_mark
            ) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        made: dict[Any, Any] = super().construct_mapping(node, deep=True)
        if len(made) != len(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "a key stands twice in one mapping", node.start_mark
            )
        return made


def parse_yaml(content: bytes) -> Any:
    """The value that a YAML document stands for; aliases and keys that stand twice are refused.

    Raises
    ------
    ValueError
        No YAML, or more than a configuration can need: the message says where.
    """
    if len(content) > YAML_BYTES:
        raise ValueError(f"it has {len(content):,} bytes; a configuration has at most {YAML_BYTES}")
    loader: _Loader | None = None
    try:
        loader = _Loader(content.decode("utf-8-sig"))
        value = loader.get_single_data()
        check_text(value)
        return value
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{(error.problem or error.context or 'no YAML')[:200]}{at}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
    except RecursionError:
        raise ValueError(f"nested more than {DEPTH} deep") from None
    finally:
        if loader is not None:
            loader.dispose()
