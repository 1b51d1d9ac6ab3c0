#include "worker_lib/tensorboard/core/protobuf.h"

#include <bit>

#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {
namespace {

constexpr unsigned kVarint = 0;
constexpr unsigned kFixed64 = 1;
constexpr unsigned kLengthDelimited = 2;
constexpr unsigned kFixed32 = 5;

}  // namespace

std::string varint(std::uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(0x80 | (number & 0x7f));
  return bytes += static_cast<char>(number);
}

void ProtobufMessage::add_tag(int field, unsigned wire_type) {
  bytes_ += varint(static_cast<std::uint64_t>(field) << 3 | wire_type);
}

ProtobufMessage& ProtobufMessage::add_integer(int field, std::int64_t value) {
  add_tag(field, kVarint);
  bytes_ += varint(static_cast<std::uint64_t>(value));
  return *this;
}

ProtobufMessage& ProtobufMessage::add_float(int field, float value) {
  add_tag(field, kFixed32);
  add_little_endian(bytes_, std::bit_cast<std::uint32_t>(value), 4);
  return *this;
}

ProtobufMessage& ProtobufMessage::add_double(int field, double value) {
  add_tag(field, kFixed64);
  add_little_endian(bytes_, std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

ProtobufMessage& ProtobufMessage::add_bytes(int field, std::string_view bytes) {
  add_tag(field, kLengthDelimited);
  bytes_ += varint(bytes.size());
  bytes_ += bytes;
  return *this;
}

ProtobufMessage& ProtobufMessage::add_doubles(int field, std::span<const double> values) {
  add_tag(field, kLengthDelimited);
  bytes_ += varint(values.size() * 8);
  for (const double value : values)
    add_little_endian(bytes_, std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

}  // namespace ddprun
