// codetr_detect: detects objects in pictures with a TensorRT engine; no Torch, no Python.
#include "engine.h"
#include "program.h"
#include "tensorrt_library.h"

int main(int count, char** arguments) {
  const codetr::Program program{"codetr_detect",
                                "--engine",
                                "TensorRT engine, its metadata <stem>.json beside it",
                                "",
                                "",
                                /*runs_on_cpu=*/false,
                                /*has_cuda_graph=*/true,
                                "TensorRT " + codetr::tensorrt_version()};
  return codetr::run_program(program, count, arguments, codetr::open_engine);
}
