// TensorRT's library in this process, without linking it: one build of the plugins serves TensorRT
// 10 and 11, whichever headers it was compiled with.
//
// The plugin interfaces are the same in both. The registry, the logger finder and the logger have
// their functions at other places.
#pragma once

#include <NvInferRuntime.h>

namespace msda::trt {

// Adds a creator to the process-wide registry. Returns false if the process has no TensorRT, or the
// registry refuses the creator.
bool register_creator(nvinfer1::IPluginCreatorInterface& creator) noexcept;

void deregister_creator(nvinfer1::IPluginCreatorInterface const& creator) noexcept;

// Logs an error to the finder's logger, or else to the process-wide one. Returns false without a
// logger.
bool log_error(nvinfer1::ILoggerFinder* finder, char const* message) noexcept;

}  // namespace msda::trt
