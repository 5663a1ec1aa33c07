"""The limits of ExecuTorch 1.5.1 and PyTorch 2.13 that the driver refuses, notes or works around.

`tests/conformance/test_upstream_limits.py` meets each limit without the driver. It fails when upstream has fixed one:
then the code that `where` names can go. `docs/reference/limits.md` is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

ERROR, NOTE, WORKAROUND, DOCUMENTED = "error", "note", "workaround", "documented"
DEEDS = {
    ERROR: "The build fails with a message that says what to do.",
    NOTE: "The build prints a note. `checks: {runtime: true}` makes an error of notes about the runtime.",
    WORKAROUND: "The build makes what the model computes.",
    DOCUMENTED: "The build does not notice it.",
}
"""What the driver does about a limit."""

NOT_REPORTED = "not reported"
_ISSUES, _PULLS = "https://github.com/pytorch/executorch/issues", "https://github.com/pytorch/executorch/pull"


@dataclass(frozen=True)
class UpstreamLimit:
    """Something that ExecuTorch or PyTorch cannot do, or does wrongly.

    Attributes:
        name: Its name in tests and on the page.
        what: The limit, in one sentence.
        deed: What the driver does about it: a key of `DEEDS`.
        where: The module that does it, relative to `etbuild` or with its plug-in, which can go or shrink when the limit
            is gone. Empty if none does.
        source: The project, and its source that has the limit.
        report: An issue or a pull request that is about it, or `NOT_REPORTED`.
    """

    name: str
    what: str
    deed: str
    where: str
    source: str
    report: str

    @property
    def file(self) -> str:
        """The module that does it, relative to `toolchain`."""
        return self.where if self.where.startswith("etplugins/") else f"etbuild/{self.where}"


LIMITS = (
    UpstreamLimit(
        "kernels",
        "The runtime has no kernel for some core ATen operators, such as `sort`: the method cannot be loaded.",
        NOTE,
        "emit/runtime_limits.py",
        "executorch: kernels/portable",
        f"{_ISSUES}/11320",
    ),
    UpstreamLimit(
        "kernels-outside-core-aten",
        "ExecuTorch refuses operators outside core ATen, also if its runtime has a kernel for them: `masked_select`, "
        "`repeat_interleave` and shifts of integers.",
        WORKAROUND,
        "lower/runtime_kernels.py",
        "executorch: exir/verification/verifier.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "rows-by-tensors",
        "PyTorch cannot decompose `x[i]` if `i` is a number that a tensor holds, such as `x[y.argmax()]`.",
        WORKAROUND,
        "etplugins/upstream/core_operators.py",
        "torch: torch/_decomp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "floats-of-sizes",
        "ExecuTorch refuses `sym_float` of a size, such as that of `math.ceil(0.5 * x.shape[0])`.",
        WORKAROUND,
        "etplugins/upstream/core_operators.py",
        "executorch: exir/verification/verifier.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "nonzero",
        "The kernel of `nonzero` writes rows where the program says columns: the indices of a tensor of several "
        "dimensions are wrong, and other kernels refuse them.",
        WORKAROUND,
        "etplugins/upstream/nonzero_rows.py",
        "executorch: kernels/portable/cpu/op_nonzero.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "aliases-of-formats",
        "The kernel of `alias_copy` refuses a tensor in the format channels_last.",
        WORKAROUND,
        "etplugins/upstream/core_operators.py",
        "executorch: kernels/portable/cpu/op_alias_copy.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "images-without-batch",
        "XNNPACK's partitioner takes `max_pool2d` and `avg_pool2d` of images without a batch, and then lowering fails.",
        WORKAROUND,
        "etplugins/upstream/core_operators.py",
        "executorch: backends/xnnpack/_passes/channels_last_tagged_reshape_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "layouts-of-dynamic-inputs",
        "XNNPACK computes wrong numbers for an operator before a dynamically quantized convolution, unless another "
        "convolution of the same delegate is before it.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_layouts.py",
        "executorch: backends/xnnpack/_passes/channels_last_tagged_reshape_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "convolutions-of-one-input",
        "XNNPACK computes wrong numbers for two dynamically quantized convolutions of the same input if their kernels "
        "have different sizes, as in Inception.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "dynamic-layers-after-images",
        "A dynamically quantized linear layer after a convolution, as in ConvNeXt, cannot be lowered for XNNPACK.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_layouts.py",
        "executorch: backends/xnnpack/_passes/channels_last_tagged_reshape_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "negative-padding",
        "The kernel of `constant_pad_nd` refuses negative amounts, which crop. PyTorch decomposes `fold` into such.",
        WORKAROUND,
        "etplugins/upstream/core_operators.py",
        "executorch: kernels/portable/cpu/util/kernel_ops_util.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "missing-decompositions",
        "Neither PyTorch decomposes some operators into core ATen operators, such as `bucketize` and "
        "`adaptive_max_pool2d`, nor does ExecuTorch accept them.",
        WORKAROUND,
        "etplugins/upstream/missing_operators.py",
        "torch: torch/_decomp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "functions-of-constants",
        "PyTorch computes no function of a constant in an export, and does not decompose some, such as `erfinv`, which "
        "ExecuTorch does not accept.",
        WORKAROUND,
        "etplugins/upstream/constant_results.py",
        "torch: torch/_decomp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "constant-parts",
        "ExecuTorch computes parts of a method that are always the same in each call, such as grids of positions.",
        WORKAROUND,
        "etplugins/upstream/constant_parts.py",
        "executorch: exir/program/_program.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "idle-operators",
        "Views, expansions and copies that return their input as it is are computed outside of delegates.",
        WORKAROUND,
        "etplugins/upstream/idle_operators.py",
        "executorch: exir/passes/remove_noop_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "softmax-guards",
        "PyTorch decomposes an attention without a mask into operators that look for masked rows, too. XNNPACK takes "
        "none of them.",
        WORKAROUND,
        "etplugins/upstream/softmax_guards.py",
        "torch: torch/_decomp/decompositions.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "views-of-weights",
        "XNNPACK takes no layer whose weight is a view of a parameter, such as the kernels of a 3D convolution.",
        WORKAROUND,
        "etplugins/upstream/shaped_weights.py",
        "executorch: backends/xnnpack/partition/config/gemm_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "volumes",
        "The runtime cannot compute convolutions and poolings of three dimensions. They become those of two; an unknown"
        " depth is refused.",
        WORKAROUND,
        "etplugins/upstream/volumes.py",
        "executorch: kernels/portable/cpu/op_convolution.cpp",
        f"{_ISSUES}/11704",
    ),
    UpstreamLimit(
        "tanh-gelu",
        "XNNPACK and Core ML compute the exact form of GELU, also where a model uses the tanh form.",
        WORKAROUND,
        "etplugins/upstream/tanh_gelu.py",
        "executorch: backends/xnnpack/operators/op_gelu.py",
        f"{_PULLS}/22851",
    ),
    UpstreamLimit(
        "sizes-of-splits",
        "The verifier of the edge dialect fixes the first size of what `split` and `chunk` return, also if it is "
        "dynamic: the program then takes inputs of one size only.",
        WORKAROUND,
        "etplugins/upstream/sizes_of_splits.py",
        "executorch: exir/verification/arg_validator.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "remainder",
        "The kernels of `remainder` give integers the sign of the dividend, where PyTorch gives that of the divisor.",
        WORKAROUND,
        "etplugins/upstream/missing_operators.py",
        "executorch: kernels/portable/cpu/op_remainder.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "int64-division",
        'The kernels of `fmod` and of `div` with `rounding_mode="trunc"` compute int64 in float64: they lose digits of '
        "numbers beyond 2^53.",
        WORKAROUND,
        "etplugins/upstream/missing_operators.py",
        "executorch: kernels/portable/cpu/op_fmod.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "norms",
        "The kernels of layer, group and instance norms compute the variance as E[x²]-E[x]², in the input's dtype: "
        "they lose digits if the mean of an input is large, and give NaN for a flat one.",
        WORKAROUND,
        "etplugins/upstream/norms.py",
        "executorch: kernels/portable/cpu/op_native_group_norm.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "norms-of-float16",
        "The kernel of `native_layer_norm` adds numbers of float16 and bfloat16 in their own dtype.",
        WORKAROUND,
        "etplugins/upstream/norms.py",
        "executorch: kernels/optimized/cpu/op_native_layer_norm.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "complex",
        "Few operators take complex numbers in the edge dialect, and `mul` is not one of them.",
        WORKAROUND,
        "etplugins/upstream/complex_numbers.py",
        "executorch: exir/dialects/edge/edge.yaml",
        f"{_ISSUES}/11404",
    ),
    UpstreamLimit(
        "complex-operators",
        "PyTorch's `ComplexTensor` lacks operators such as `unfold_copy`, and computes `abs` by `hypot`, without "
        "a kernel.",
        WORKAROUND,
        "etplugins/upstream/complex_operators.py",
        "torch: torch/_subclasses/complex_tensor/_ops/aten.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "fourier",
        "PyTorch does not decompose Fourier transforms, and the edge dialect refuses those of complex numbers.",
        WORKAROUND,
        "etplugins/upstream/fourier.py",
        "torch: torch/_decomp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "spectra",
        "The decompositions of `torch.stft` and `torch.istft` have operators that no backend takes.",
        WORKAROUND,
        "etplugins/upstream/spectra.py",
        "torch: aten/src/ATen/native/SpectralOps.cpp",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "float8",
        "No operator takes 8-bit floats in the edge dialect, not even a conversion.",
        ERROR,
        "lower/lower_methods.py",
        "executorch: exir/dialects/edge/edge.yaml",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "while-loop",
        "A `while_loop` can be exported and lowered, but not emitted.",
        ERROR,
        "lower/lower_methods.py",
        "executorch: exir/emit/_emitter.py",
        f"{_ISSUES}/8769",
    ),
    UpstreamLimit(
        "written-parameters",
        "A method cannot write to a parameter: lowering fails, or the value is not kept.",
        ERROR,
        "lower/lower_methods.py",
        "torch: torch/_export/verifier.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "strings",
        "A method that returns a string can be lowered, but not emitted.",
        ERROR,
        "export/method_results.py",
        "executorch: exir/emit/_emitter.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "memory-of-views",
        "A view has the memory of its tensor. Where a dynamic size is divided by another, the largest size of the view "
        "is estimated as too large, so that the runtime cannot load the method.",
        WORKAROUND,
        "etplugins/upstream/size_bounds.py",
        "executorch: exir/passes/replace_view_copy_with_view_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "size-of-the-example",
        "Where the largest size of a tensor is not known, memory is planned for the example: a larger input fails.",
        WORKAROUND,
        "etplugins/upstream/size_bounds.py",
        "executorch: exir/sym_util.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "no-tensors",
        "The memory of a method that returns no tensor cannot be planned; the message does not say so.",
        ERROR,
        "emit/emit_methods.py",
        "executorch: exir/memory_planning.py",
        f"{_ISSUES}/22477",
    ),
    UpstreamLimit(
        "shared-arenas",
        "`Module` in C++, and so `TextLLMRunner`, gives each method its own memory unless it is told otherwise: "
        "methods do not share a cache.",
        ERROR,
        "etplugins/transformers/runners.py",
        "executorch: extension/module/module.h",
        f"{_PULLS}/17719",
    ),
    UpstreamLimit(
        "xnnpack-bfloat16",
        "XNNPACK's partitioner leaves bfloat16 out without a word, unless it has `enable_bf16`.",
        NOTE,
        "lower/dtypes.py",
        "executorch: backends/xnnpack/partition/config/xnnpack_config.py",
        f"{_ISSUES}/21859",
    ),
    UpstreamLimit(
        "xnnpack-dimensions",
        "XNNPACK's partitioner takes tensors of more than 6 dimensions: the method cannot be loaded.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/partition/config/xnnpack_config.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-hooks",
        "XNNPACK takes the operators of a hook for the linear layer that has the hook, and computes something else.",
        WORKAROUND,
        "etplugins/upstream/linear_layers.py",
        "executorch: backends/xnnpack/partition/config/gemm_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-given-weights",
        "With `force_non_static_weights_for_f32_linear`, a method with a convolution cannot be loaded.",
        ERROR,
        "backends/xnnpack.py",
        "executorch: backends/xnnpack/partition/config/gemm_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-weight-twice",
        "If XNNPACK has a layer and another operator that reads the layer's weight or bias, a method that comes from a "
        "file crashes.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/runtime/XNNCompiler.cpp",
        f"{_PULLS}/21480",
    ),
    UpstreamLimit(
        "xnnpack-bias-twice",
        "If a quantized layer is called twice, both calls have the bias of one: XNNPACK computes wrong numbers, or the "
        "method cannot be loaded.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/operators/node_visitor.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-kernel-twice",
        "A one-dimensional convolution that is called twice cannot be lowered for XNNPACK.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/_passes/conv1d_unsqueeze_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-transposed-twice",
        "If a convolution and a transposed one have one kernel, XNNPACK computes wrong numbers for the second.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/operators/node_visitor.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-own-weight",
        "XNNPACK crashes if the weight of a layer with a bias is also its input.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/partition/config/gemm_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-prelu",
        "XNNPACK's partitioner takes PReLU of tensors that are no batches of images, and then lowering fails.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/_passes/channels_last_tagged_reshape_pass.py",
        f"{_PULLS}/18624",
    ),
    UpstreamLimit(
        "xnnpack-dynamic-sizes",
        "XNNPACK's partitioner takes a one-dimensional convolution, or `unsqueeze` at the end, of tensors with several "
        "dynamic sizes, and then lowering fails. The driver leaves these to other kernels.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/operators/op_squeeze.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "moved-buffers",
        "If a method writes the content of a buffer into another one, the program writes nothing.",
        WORKAROUND,
        "etplugins/upstream/old_buffers.py",
        "executorch: exir/passes/insert_write_back_for_buffers_pass.py",
        f"{_ISSUES}/7515",
    ),
    UpstreamLimit(
        "overwritten-branches",
        "The results of two `torch.cond` may share memory: the second one overwrites the first one's result.",
        WORKAROUND,
        "etplugins/upstream/branch_results.py",
        "executorch: exir/emit/_emitter.py",
        f"{_ISSUES}/21490",
    ),
    UpstreamLimit(
        "views-of-branches",
        "A reshape of what `torch.cond` returns, if its sizes are fixed, shows memory that nothing has written.",
        WORKAROUND,
        "etplugins/upstream/branch_results.py",
        "executorch: exir/passes/replace_view_copy_with_view_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "views-of-loops",
        "A reshape of what `map` returns, or of what the rounds of a `scan` return, cannot be emitted if its sizes are "
        "fixed.",
        WORKAROUND,
        "etplugins/upstream/branch_results.py",
        "executorch: exir/emit/_emitter.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "buffers-of-one-value",
        "A method that writes one tensor into two buffers cannot be lowered.",
        WORKAROUND,
        "export/written_buffers.py",
        "torch: torch/export/graph_signature.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-addmm",
        "XNNPACK computes `addmm` as a linear layer, without its `alpha` and `beta`, and with a bias of any shape.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/_passes/convert_to_linear.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-rsqrt",
        "XNNPACK gives NaN for `rsqrt` of 0, where PyTorch gives infinity, as for a node of a graph without edges.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/partition/config/generic_node_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-sigmoid",
        "XNNPACK gives NaN for `sigmoid` of finite numbers beyond 1e20, as masks of -1e30 make them.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/partition/config/generic_node_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-max",
        "XNNPACK's partitioner takes `max` over a dimension that is counted from the end, or that the result does not "
        "keep, and then lowering fails.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/partition/config/node_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-copied-results",
        "XNNPACK leaves copies out, and refuses a delegate that then returns one result twice: `y = x.clone()` if `y` "
        "and `x` are read by other kernels.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/xnnpack_preprocess.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-cycles",
        "XNNPACK's partitioner makes two delegates that wait for each other, if operators in different places of a "
        "graph have to be in one delegate. Lowering then fails: `found dependency cycles`.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_cycles.py",
        "executorch: exir/backend/canonical_partitioners/group_partitioner.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-softmax",
        "XNNPACK computes softmax over the channels in place of the last dimension if its input is in the format "
        "channels_last, such as the result of a convolution.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_layouts.py",
        "executorch: backends/xnnpack/_passes/channels_last_tagged_reshape_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-scale",
        "XNNPACK resizes an image by the ratio of its sizes, also if the model gives another scale.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/partition/config/generic_node_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-written-weight",
        "XNNPACK's partitioner takes a buffer that the method writes for the constant weight of a layer. What is "
        "written is then lost, or lowering fails.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_operators.py",
        "executorch: backends/xnnpack/partition/config/gemm_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-quantized-input",
        "XNNPACK takes a quantized input in the format channels_last for a row-major one, and the method fails when it "
        "runs.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_layouts.py",
        "executorch: backends/xnnpack/_passes/channels_last_tagged_reshape_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-borders",
        "XNNPACK writes no result of a statically quantized delegate that a quantized operator in it reads too.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/partition/config/generic_node_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "layouts-of-quantized-results",
        "XNNPACK computes wrong numbers for an operator that is not quantized, such as the `exp` of Mish, if it and an "
        "operator outside the delegate read the result of a statically quantized convolution.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_layouts.py",
        "executorch: backends/xnnpack/_passes/channels_last_tagged_reshape_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-conv1d-floats",
        "If a one-dimensional convolution is not quantized, and the operator before or after it is, XNNPACK cannot "
        "lower it, or the method cannot be loaded. PT2E does not quantize the first of two calls of a layer.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/_passes/conv1d_unsqueeze_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-batch-norms",
        "XNNPACK gives all batch norms after one layer the constants of the first, and so two without parameters, or "
        "with one weight.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/_passes/fuse_batch_norm.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-norms",
        "XNNPACK has all operators that layer, group and instance norms need, but its partitioner leaves norms out.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_norms.py",
        "executorch: backends/xnnpack/partition/config/generic_node_configs.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-activations",
        "Of two activations after one layer, XNNPACK computes only the last.",
        WORKAROUND,
        "etplugins/upstream/xnnpack_graphs.py",
        "executorch: backends/xnnpack/_passes/fuse_activation_pass.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "xnnpack-growing-batch",
        "A statically quantized method with a dynamic batch may compute wrong numbers when it is called with a larger "
        "batch than before.",
        ERROR,
        "etplugins/comparison/step.py",
        "executorch: backends/xnnpack/runtime",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "batch-norms-of-one-convolution",
        "PT2E folds each batch norm into its convolution, also if the convolution has several: the others then compute "
        "wrong numbers.",
        ERROR,
        "etplugins/quantize/pt2e.py",
        "torchao: torchao/quantization/pt2e/utils.py",
        "https://github.com/pytorch/ao/pull/2795",
    ),
    UpstreamLimit(
        "embeddings",
        "A quantized embedding with `padding_idx` does not become ExecuTorch's own operator, so that it has no kernel.",
        WORKAROUND,
        "etplugins/upstream/dequantize.py",
        "executorch: exir/passes/_quant_patterns_and_replacements.py",
        f"{_ISSUES}/10663",
    ),
    UpstreamLimit(
        "names-of-constants",
        "Named data finds the constants of portable operators by name: two methods with different weights of one name "
        "are emitted, and one of them reads the weight of the other.",
        ERROR,
        "emit/emit_program.py",
        "executorch: exir/emit/_emitter.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "views-of-constants",
        "A method with a view of a constant in named data cannot be emitted.",
        WORKAROUND,
        "etplugins/upstream/viewed_weights.py",
        "executorch: exir/emit/_emitter.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "alignment",
        "Named data that is added twice has the alignment of the first time, not one that suits both.",
        WORKAROUND,
        "lower/named_data.py",
        "executorch: exir/_serialize/_named_data_store.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "derived-dimensions",
        'A saved program with derived dimensions, such as `8 * Dim("n")`, cannot be decomposed.',
        WORKAROUND,
        "export/size_conditions.py",
        "torch: torch/_export/serde/serialize.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "assigned-buffers",
        "What a method assigns to a buffer goes to another buffer, if an entry before it is None.",
        WORKAROUND,
        "etplugins/assignments/own_buffers.py",
        "torch: torch/export/_trace.py",
        "https://github.com/pytorch/pytorch/pull/185108",
    ),
    UpstreamLimit(
        "traced-attributes",
        "Tracing leaves fake tensors in new attributes of the module, such as a `functools.cached_property`.",
        WORKAROUND,
        "etplugins/assignments/python_state.py",
        "torch: torch/export/_trace.py",
        NOT_REPORTED,
    ),
    UpstreamLimit(
        "traces-of-helpers",
        "An export knows the source lines of functions called `forward`, and of no other functions.",
        WORKAROUND,
        "export/node_sources.py",
        "torch: torch/fx/proxy.py",
        NOT_REPORTED,
    ),
)
"""The limits, those of the runtime first."""
