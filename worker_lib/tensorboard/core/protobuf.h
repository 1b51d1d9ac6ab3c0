// ProtobufMessage: encodes one message in the protobuf wire format ("Encoding" in the
// documentation of Protocol Buffers). It writes only: TensorBoard's few messages need no library.
// Every field that is added is written, also if it has the default value. Pure; one owner.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ddprun {

// Returns the base-128 form of a number, the lowest 7 bits first.
std::string varint(std::uint64_t number);

class ProtobufMessage {
 public:
  // Adds a field of type int32, int64, bool or enum. A negative number takes ten bytes.
  ProtobufMessage& add_integer(int field, std::int64_t value);
  ProtobufMessage& add_float(int field, float value);
  ProtobufMessage& add_double(int field, double value);
  // Adds a field of type string or bytes.
  ProtobufMessage& add_bytes(int field, std::string_view bytes);
  ProtobufMessage& add_message(int field, const ProtobufMessage& message) {
    return add_bytes(field, message.bytes());
  }
  // Adds a repeated double, packed.
  ProtobufMessage& add_doubles(int field, std::span<const double> values);

  const std::string& bytes() const { return bytes_; }

 private:
  void add_tag(int field, unsigned wire_type);

  std::string bytes_;
};

}  // namespace ddprun
