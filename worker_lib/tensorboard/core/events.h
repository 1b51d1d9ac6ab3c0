// Makes TensorBoard's messages. Each function returns an encoded message. Names and numbers of
// fields are those of:
//
// - tensorflow/core/util/event.proto: Event (wall_time 1, step 2, file_version 3, summary 5,
//   session_log 7), SessionLog (status 1).
// - tensorflow/core/framework/summary.proto: Summary (value 1), Summary.Value (tag 1,
//   simple_value 2, image 4, histo 5, tensor 8, metadata 9), Summary.Image (height 1, width 2,
//   colorspace 3, encoded_image_string 4), SummaryMetadata (plugin_data 1), PluginData
//   (plugin_name 1, content 2), HistogramProto (min 1, max 2, num 3, sum 4, sum_squares 5,
//   bucket_limit 6, bucket 7; now in histogram.proto).
// - tensorflow/core/framework/tensor.proto: TensorProto (dtype 1, tensor_shape 2, string_val 8);
//   tensor_shape.proto: TensorShapeProto (dim 2), Dim (size 1).
// - tensorboard/plugins/hparams/plugin_data.proto: HParamsPluginData (version 1, experiment 2,
//   session_start_info 3, session_end_info 4), SessionStartInfo (hparams 1), SessionEndInfo
//   (status 1); api.proto: Experiment (hparam_infos 4, metric_infos 5), HParamInfo (name 1,
//   type 4), MetricInfo (name 1), MetricName (tag 2).
// - google/protobuf/struct.proto: Value (number_value 2, string_value 3, bool_value 4).
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "ddprun/summary_writer.h"
#include "worker_lib/tensorboard/core/histogram.h"
#include "worker_lib/tensorboard/core/protobuf.h"

namespace ddprun {

struct EventTime {
  double wall_s = 0;  // seconds since 1970
  std::int64_t step = 0;
};

// Makes the first event of a file.
ProtobufMessage file_version_event(double wall_s);
// Tells readers that a program begins at this step. They drop what earlier files of the directory
// have of this step and later ones.
ProtobufMessage session_start_event(const EventTime& at);
ProtobufMessage summary_event(const EventTime& at, const ProtobufMessage& summary);

ProtobufMessage scalar_summary(std::string_view tag, float value);
// Returns a Summary without values if the histogram is empty.
ProtobufMessage histogram_summary(std::string_view tag, const HistogramCounts& histogram);
ProtobufMessage text_summary(std::string_view tag, std::string_view text);
ProtobufMessage image_summary(std::string_view tag, std::span<const std::uint8_t> pixels,
                              int height, int width, int channels);
// Makes a summary of the parameters, the names of the metrics, and the metrics as scalars.
ProtobufMessage hparams_summary(const HParams& parameters,
                                const std::map<std::string, double>& metrics);

}  // namespace ddprun
