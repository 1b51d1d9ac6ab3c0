#include "worker_lib/tensorboard/core/protobuf.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun {
namespace {

using std::string_literals::operator""s;

TEST(Protobuf, VarintsHaveSevenBitsInAByte) {
  EXPECT_EQ(varint(0), "\0"s);
  EXPECT_EQ(varint(127), "\x7f");
  EXPECT_EQ(varint(128), "\x80\x01");
  EXPECT_EQ(varint(150), "\x96\x01");  // the example of the documentation
  EXPECT_EQ(varint(300), "\xac\x02");
  EXPECT_EQ(varint(UINT64_MAX), std::string(9, '\xff') + "\x01");
}

TEST(Protobuf, FieldsHaveTheirNumberAndWireType) {
  EXPECT_EQ(ProtobufMessage().add_integer(1, 150).bytes(), "\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().add_integer(16, 0).bytes(), "\x80\x01\0"s);
  EXPECT_EQ(ProtobufMessage().add_integer(1, -1).bytes(), "\x08" + std::string(9, '\xff') + "\x01");
  EXPECT_EQ(ProtobufMessage().add_bytes(2, "testing").bytes(), "\x12\x07testing");
  EXPECT_EQ(ProtobufMessage().add_float(2, 1.0F).bytes(), "\x15\0\0\x80\x3f"s);
  EXPECT_EQ(ProtobufMessage().add_double(1, 1.0).bytes(), "\x09\0\0\0\0\0\0\xf0\x3f"s);
  EXPECT_EQ(ProtobufMessage().add_doubles(6, std::vector<double>{1.0}).bytes(),
            "\x32\x08\0\0\0\0\0\0\xf0\x3f"s);
}

TEST(Protobuf, AMessageIsAFieldWithALength) {
  const ProtobufMessage inner = ProtobufMessage().add_integer(1, 150);
  EXPECT_EQ(ProtobufMessage().add_message(3, inner).bytes(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().add_message(3, {}).bytes(), "\x1a\0"s);
}

}  // namespace
}  // namespace ddprun
