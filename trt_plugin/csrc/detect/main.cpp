// codetr_detect: an engine and pictures in, annotated pictures and detections out, by TensorRT
// alone.
#include "engine.h"
#include "program.h"
#include "tensorrt_log.h"

int main(int count, char** arguments) {
  static constexpr codetr::Program kProgram{"codetr_detect",
                                            "--engine",
                                            "TensorRT engine, its metadata <stem>.json beside it",
                                            nullptr,
                                            nullptr,
                                            false,
                                            true};
  const auto open = [](codetr::Options const& options, codetr::Metadata const& metadata) {
    return codetr::open_engine(
        {options.model, options.metadata(), options.plugins, options.device, options.cuda_graph},
        metadata);
  };
  return codetr::run_program(kProgram, count, arguments, open,
                             "TensorRT " + codetr::tensorrt_version());
}
