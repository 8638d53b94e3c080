// The kernel of image input, for the types of a network's input.
#include "msda/image_input.cuh"

namespace msda {

template cudaError_t run_image_input<float>(const ImageInputProblem&, const ImageInputArguments&,
                                            cudaStream_t);
template cudaError_t run_image_input<__half>(const ImageInputProblem&, const ImageInputArguments&,
                                             cudaStream_t);
template cudaError_t run_image_input<__nv_bfloat16>(const ImageInputProblem&,
                                                    const ImageInputArguments&, cudaStream_t);

}  // namespace msda
