#include "worker_lib/tensorboard/core/events.h"

#include <type_traits>
#include <variant>

#include "worker_lib/tensorboard/core/png.h"

namespace ddprun {
namespace {

constexpr int kSessionStart = 1;   // SessionLog.START
constexpr int kStringTensor = 7;   // DT_STRING
constexpr int kStatusSuccess = 1;  // of a session of the hparams plugin
constexpr int kTypeString = 1;     // DATA_TYPE_STRING
constexpr int kTypeBool = 2;       // DATA_TYPE_BOOL
constexpr int kTypeFloat64 = 3;    // DATA_TYPE_FLOAT64

ProtobufMessage event(const EventTime& at) {
  return ProtobufMessage().add_double(1, at.wall_s).add_integer(2, at.step);
}

ProtobufMessage value_of(std::string_view tag) { return ProtobufMessage().add_bytes(1, tag); }

ProtobufMessage metadata(std::string_view plugin, const ProtobufMessage& content) {
  return ProtobufMessage().add_message(
      1, ProtobufMessage().add_bytes(1, plugin).add_message(2, content));
}

void add_scalar_value(ProtobufMessage& summary, std::string_view tag, float value) {
  summary.add_message(1, value_of(tag).add_float(2, value));
}

// Adds a value of the hparams plugin, whose content is one field of HParamsPluginData.
void add_hparams_value(ProtobufMessage& summary, std::string_view tag, int field,
                       const ProtobufMessage& content) {
  const ProtobufMessage data = ProtobufMessage().add_integer(1, 0).add_message(field, content);
  summary.add_message(1, value_of(tag).add_message(9, metadata("hparams", data)));
}

int type_of(const HParam& value) {
  return std::visit(
      [](const auto& held) {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, bool>) return kTypeBool;
        if constexpr (std::is_same_v<Held, std::string>) return kTypeString;
        return kTypeFloat64;
      },
      value);
}

// Returns a google.protobuf.Value.
ProtobufMessage json_value(const HParam& value) {
  return std::visit(
      [](const auto& held) {
        using Held = std::remove_cvref_t<decltype(held)>;
        ProtobufMessage message;
        if constexpr (std::is_same_v<Held, bool>) {
          message.add_integer(4, held);
        } else if constexpr (std::is_same_v<Held, std::string>) {
          message.add_bytes(3, held);
        } else {
          message.add_double(2, static_cast<double>(held));
        }
        return message;
      },
      value);
}

}  // namespace

ProtobufMessage file_version_event(double wall_s) {
  return ProtobufMessage().add_double(1, wall_s).add_bytes(3, "brain.Event:2");
}

ProtobufMessage session_start_event(const EventTime& at) {
  return event(at).add_message(7, ProtobufMessage().add_integer(1, kSessionStart));
}

ProtobufMessage summary_event(const EventTime& at, const ProtobufMessage& summary) {
  return event(at).add_message(5, summary);
}

ProtobufMessage scalar_summary(std::string_view tag, float value) {
  ProtobufMessage summary;
  add_scalar_value(summary, tag, value);
  return summary;
}

ProtobufMessage histogram_summary(std::string_view tag, const HistogramCounts& histogram) {
  if (histogram.count == 0) return {};
  ProtobufMessage fields;
  fields.add_double(1, histogram.min)
      .add_double(2, histogram.max)
      .add_double(3, static_cast<double>(histogram.count))
      .add_double(4, histogram.sum)
      .add_double(5, histogram.sum_squares)
      .add_doubles(6, histogram.limits)
      .add_doubles(7, histogram.counts);
  return ProtobufMessage().add_message(1, value_of(tag).add_message(5, fields));
}

ProtobufMessage text_summary(std::string_view tag, std::string_view text) {
  const ProtobufMessage shape =
      ProtobufMessage().add_message(2, ProtobufMessage().add_integer(1, 1));
  const ProtobufMessage tensor =
      ProtobufMessage().add_integer(1, kStringTensor).add_message(2, shape).add_bytes(8, text);
  return ProtobufMessage().add_message(1, value_of(std::string(tag) + "/text_summary")
                                              .add_message(9, metadata("text", {}))
                                              .add_message(8, tensor));
}

ProtobufMessage image_summary(std::string_view tag, std::span<const std::uint8_t> pixels,
                              int height, int width, int channels) {
  const ProtobufMessage image = ProtobufMessage()
                                    .add_integer(1, height)
                                    .add_integer(2, width)
                                    .add_integer(3, channels)
                                    .add_bytes(4, png(pixels, height, width, channels));
  return ProtobufMessage().add_message(1, value_of(tag).add_message(4, image));
}

ProtobufMessage hparams_summary(const HParams& parameters,
                                const std::map<std::string, double>& metrics) {
  ProtobufMessage experiment;
  ProtobufMessage start;
  for (const auto& [name, value] : parameters) {
    experiment.add_message(4, ProtobufMessage().add_bytes(1, name).add_integer(4, type_of(value)));
    start.add_message(1, ProtobufMessage().add_bytes(1, name).add_message(2, json_value(value)));
  }
  for (const auto& [name, value] : metrics) {
    const ProtobufMessage metric_name = ProtobufMessage().add_bytes(2, name);
    experiment.add_message(5, ProtobufMessage().add_message(1, metric_name));
  }
  ProtobufMessage summary;
  add_hparams_value(summary, "_hparams_/experiment", 2, experiment);
  add_hparams_value(summary, "_hparams_/session_start_info", 3, start);
  add_hparams_value(summary, "_hparams_/session_end_info", 4,
                    ProtobufMessage().add_integer(1, kStatusSuccess));
  for (const auto& [name, value] : metrics) {
    add_scalar_value(summary, name, static_cast<float>(value));
  }
  return summary;
}

}  // namespace ddprun
