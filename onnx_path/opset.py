"""Raises the version of the standard operators that a model imports."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx.external_data_helper import uses_external_data

from codetr.errors import UsageError, one_line
from onnx_path.surgery.graph.traversal import STANDARD_DOMAINS

_LARGE = 1024  # bytes; the converter needs the numbers of small constants alone, such as axes


def opset_of(model: onnx.ModelProto | ir.Model) -> int:
    """Returns the version of the standard operators that a model imports."""
    if isinstance(model, ir.Model):
        imports = model.opset_imports
    else:
        imports = {x.domain: x.version for x in model.opset_import}
    return max((imports[domain] for domain in STANDARD_DOMAINS if domain in imports), default=0)


def raise_opset(model: onnx.ModelProto, version: int) -> None:
    """Brings the nodes of a model to a version of the standard operators, in place; a later one stays.

    ONNX's converter adapts the nodes. It drops functions, so the bodies of our nodes are kept aside: their
    operators mean the same in every version.

    Args:
        model: an error leaves it unchanged. Weights in other files stay there.
        version: the lowest version that the model shall have.

    Raises:
        UsageError: the converter cannot adapt a node.
    """
    found = opset_of(model)
    if found >= version:
        return
    weights = list(model.graph.initializer)
    large = [x for x in weights if uses_external_data(x) or x.ByteSize() > _LARGE]
    inputs = len(model.graph.input)
    fed = {x.name for x in model.graph.input}
    added = [x for x in large if x.name not in fed]
    del model.graph.initializer[:]
    try:
        small = {x.name for x in weights} - {x.name for x in large}
        model.graph.initializer.extend(x for x in weights if x.name in small)
        model.graph.input.extend(
            onnx.helper.make_tensor_value_info(x.name, x.data_type, x.dims) for x in added
        )
        raised = onnx.version_converter.convert_version(model, version)
    except Exception as error:  # the converter's errors are RuntimeError and classes of its own
        reason = f"its operators of version {found} cannot become those of version {version}"
        raise UsageError(f"{reason}: {one_line(error)}; export it with opset {version}") from error
    finally:
        del model.graph.initializer[:], model.graph.input[inputs:]
        model.graph.initializer.extend(weights)
    del raised.graph.input[inputs:], raised.graph.output[:]
    raised.graph.output.extend(model.graph.output)  # with the names of dynamic sizes
    raised.graph.initializer.extend(large)
    raised.functions.extend(model.functions)
    for function in raised.functions:
        for imported in function.opset_import:
            if imported.domain in STANDARD_DOMAINS:
                imported.version = version
    raised.metadata_props.extend(model.metadata_props)
    model.CopyFrom(raised)
