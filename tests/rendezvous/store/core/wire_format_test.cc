#include "rendezvous/store/core/wire_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/docs_table.h"
#include "tests/support/store_bytes.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::handshake;
using testing_support::request;
using testing_support::table_rows;
using testing_support::TableRow;
using testing_support::u64;

struct Parsed {
  Command command;
  std::vector<std::string> strings;
  std::int64_t number;

  bool operator==(const Parsed&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << rule_of(parsed.command).name << "(" << parsed.number;
  for (const std::string& text : parsed.strings) out << ", " << text.substr(0, 40);
  return out << ")";
}

Parsed copy_of(const Request& request) {
  const bool has_number = rule_of(request.command).fields[0] == Field::kUint32 ||
                          rule_of(request.command).fields[1] == Field::kInt64;
  return {request.command,
          {request.strings.begin(), request.strings.end()},
          has_number ? request.number : 0};
}

std::vector<Parsed> take_all(RequestParser& parser) {
  std::vector<Parsed> all;
  while (const Request* request = parser.next()) all.push_back(copy_of(*request));
  return all;
}

std::string error_of(const RequestParser& parser) {
  return parser.refusal() ? parser.refusal()->reason : std::string();
}

bool has(Dialect dialect, Command command) { return opcode_of(dialect, command).has_value(); }

// Sample: a request of some kind, as a client may send it.
struct Sample {
  std::string bytes;
  Parsed parsed;
};

std::vector<Sample> one_of_each(Dialect dialect) {
  std::vector<Sample> samples;
  const auto add = [&](Command command, std::vector<std::string> strings, std::int64_t number = 0) {
    if (!has(dialect, command)) return;
    const std::vector<std::string_view> views(strings.begin(), strings.end());
    samples.push_back({request(command, views, number, dialect), {command, strings, number}});
  };
  add(Command::kSet, {"/key", "value"});
  add(Command::kCompareSet, {"/key", "old", "new"});
  add(Command::kGet, {"/key"});
  add(Command::kAdd, {"/counter"}, -5);
  add(Command::kCheck, {"/a", "/b"});
  add(Command::kWait, {"/a", "/b", "/c"});
  add(Command::kGetNumKeys, {});
  add(Command::kDeleteKey, {"/key"});
  add(Command::kAppend, {"/key", "more"});
  add(Command::kMultiGet, {"/a", "/b"});
  add(Command::kMultiSet, {"/a", "1", "/b", "2"});
  add(Command::kCancelWait, {});
  add(Command::kPing, {}, 4711);
  add(Command::kQueuePush, {"/q", "item"});
  add(Command::kQueuePop, {"/q"});
  add(Command::kQueueLen, {"/q"});
  add(Command::kListKeys, {});
  add(Command::kBarrier, {"/b"}, 16);
  add(Command::kWatchKey, {"/key"});
  add(Command::kFetch, {"/key"});
  add(Command::kTryFetch, {"/a", "/b"});
  return samples;
}

std::string opening(Dialect dialect) {
  return dialect == Dialect::kModern ? handshake() : std::string();
}

std::string all_samples(Dialect dialect) {
  std::string bytes = opening(dialect);
  for (const Sample& sample : one_of_each(dialect)) bytes += sample.bytes;
  return bytes;
}

std::vector<Parsed> all_parsed(Dialect dialect) {
  std::vector<Parsed> parsed;
  for (const Sample& sample : one_of_each(dialect)) parsed.push_back(sample.parsed);
  return parsed;
}

// Returns the parser's error for these bytes after a good handshake.
std::string error_after(const std::string& bytes, const RequestLimits& limits = {}) {
  RequestParser parser(limits);
  parser.feed(handshake() + bytes);
  take_all(parser);
  return error_of(parser);
}

TEST(WireFormat, EncodesTheCapturedBytesOfPyTorch) {
  EXPECT_EQ(handshake(), "\x00\xCE\xF7\x85\x3C"s);
  EXPECT_EQ(request(Command::kAdd, {"/ctr"}, 5), "\x04\x04\0\0\0\0\0\0\0/ctr\x05\0\0\0\0\0\0\0"s);
  EXPECT_EQ(request(Command::kWait, {"/k"}), "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"s);
  EXPECT_EQ(request(Command::kBarrier, {"/b"}, 1), "\x12\x02\0\0\0\0\0\0\0/b\x01\0\0\0\0\0\0\0"s);
}

// These numbers must not change: a server of another version would take them for other commands.
TEST(WireFormat, OurOwnCommandsKeepTheirNumbers) {
  EXPECT_EQ(request(Command::kFetch, {"/k"}), "\x80\x02\0\0\0\0\0\0\0/k"s);
  EXPECT_EQ(request(Command::kTryFetch, {"/k"}), "\x81\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"s);
}

TEST(WireFormat, TheCommandsOfTheDocumentationAreThoseOfTheCode) {
  const std::array<std::string, 7> field_names{"",    "key",  "value",       "i64",
                                               "u32", "keys", "(key value)*"};
  std::set<TableRow> rows;
  for (const CommandRule& rule : kCommandRules) {
    TableRow row;
    for (const Dialect dialect : {Dialect::kModern, Dialect::kL2, Dialect::kL1}) {
      const std::optional<std::uint8_t> opcode = opcode_of(dialect, rule.command);
      row.push_back(opcode ? std::to_string(*opcode) : "");
    }
    row.emplace_back(rule.name);
    std::string fields;
    for (const Field field : rule.fields) {
      if (field == Field::kNone) break;
      fields += (fields.empty() ? "" : " ") + field_names[static_cast<std::size_t>(field)];
    }
    row.push_back(fields);
    rows.insert(row);
  }
  const auto documented =
      table_rows("reference/wire_protocol.md", {"M", "L2", "L1", "name", "fields"});
  EXPECT_EQ(documented.size(), rows.size()) << "one is there twice";
  EXPECT_EQ(std::set<TableRow>(documented.begin(), documented.end()), rows);
}

class EveryDialect : public testing::TestWithParam<Dialect> {
 protected:
  Dialect dialect() const { return GetParam(); }
  RequestParser parser() const { return RequestParser({}, dialect()); }
};

TEST_P(EveryDialect, HasOneOpcodeForEachOfItsCommands) {
  for (const CommandRule& rule : kCommandRules) {
    const std::optional<std::uint8_t> opcode = opcode_of(dialect(), rule.command);
    if (!opcode) continue;
    EXPECT_EQ(command_of(dialect(), *opcode), rule.command) << rule.name;
  }
  for (int opcode = 0; opcode < 256; ++opcode) {
    const auto command = command_of(dialect(), static_cast<std::uint8_t>(opcode));
    if (!command) continue;
    EXPECT_EQ(opcode_of(dialect(), *command), opcode);
  }
}

TEST_P(EveryDialect, IsReadFromOneChunk) {
  RequestParser parser = this->parser();
  parser.feed(all_samples(dialect()));
  EXPECT_EQ(take_all(parser), all_parsed(dialect()));
  EXPECT_EQ(error_of(parser), "");
}

TEST_P(EveryDialect, IsReadByteByByte) {
  RequestParser parser = this->parser();
  std::vector<Parsed> got;
  for (const char byte : all_samples(dialect())) {
    parser.feed(std::string_view(&byte, 1));
    for (Parsed& parsed : take_all(parser)) got.push_back(std::move(parsed));
  }
  EXPECT_EQ(got, all_parsed(dialect()));
  EXPECT_EQ(error_of(parser), "");
}

TEST_P(EveryDialect, IsReadTheSameWhereverTheBytesAreCut) {
  const std::string bytes = all_samples(dialect());
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    RequestParser parser = this->parser();
    parser.feed(std::string_view(bytes).substr(0, cut));
    std::vector<Parsed> got = take_all(parser);
    parser.feed(std::string_view(bytes).substr(cut));
    for (Parsed& parsed : take_all(parser)) got.push_back(std::move(parsed));
    ASSERT_EQ(got, all_parsed(dialect())) << "cut at " << cut;
  }
}

TEST_P(EveryDialect, IsReadFromBytesThatAreWrittenIntoTheParsersSpace) {
  RequestParser parser = this->parser();
  std::string_view rest;
  const std::string bytes = all_samples(dialect());
  std::vector<Parsed> got;
  for (rest = bytes; !rest.empty();) {
    const std::span<char> space = parser.space();
    ASSERT_FALSE(space.empty());
    const std::size_t count = std::min({space.size(), rest.size(), std::size_t{7}});
    std::copy_n(rest.begin(), count, space.begin());
    parser.commit(count);
    rest.remove_prefix(count);
    for (Parsed& parsed : take_all(parser)) got.push_back(std::move(parsed));
  }
  EXPECT_EQ(got, all_parsed(dialect()));
}

TEST_P(EveryDialect, GivesARequestOnlyWhenItIsWhole) {
  for (const Sample& sample : one_of_each(dialect())) {
    RequestParser parser = this->parser();
    parser.feed(opening(dialect()) + sample.bytes.substr(0, sample.bytes.size() - 1));
    EXPECT_THAT(take_all(parser), IsEmpty()) << sample.parsed;
    parser.feed(sample.bytes.substr(sample.bytes.size() - 1));
    EXPECT_THAT(take_all(parser), ElementsAre(sample.parsed));
  }
}

TEST_P(EveryDialect, RefusesEveryUnknownOpcode) {
  const std::string before = opening(dialect()) + request(Command::kGet, {"k"}, 0, dialect());
  // An L1 connection switches to L2 first. So the unknown opcodes are those that L2 does not
  // have.
  const Dialect last = dialect() == Dialect::kL1 ? Dialect::kL2 : dialect();
  for (int opcode = 0; opcode < 256; ++opcode) {
    if (command_of(last, static_cast<std::uint8_t>(opcode))) continue;
    RequestParser parser = this->parser();
    parser.feed(before + static_cast<char>(opcode));
    EXPECT_EQ(take_all(parser).size(), 1u);
    EXPECT_EQ(error_of(parser), "opcode " + std::to_string(opcode) + " is not known");
  }
}

INSTANTIATE_TEST_SUITE_P(Dialects, EveryDialect,
                         testing::Values(Dialect::kL1, Dialect::kL2, Dialect::kModern));

TEST(RequestParser, TakesEmptyStringsEmptyListsAndNulBytes) {
  RequestParser parser;
  parser.feed(handshake() + request(Command::kSet, {"", ""}) +
              request(Command::kSet, {"a\0b"sv, "\0"sv}) + request(Command::kWait) +
              request(Command::kMultiGet) + request(Command::kMultiSet));
  EXPECT_THAT(take_all(parser),
              ElementsAre(Parsed{Command::kSet, {"", ""}, 0},
                          Parsed{Command::kSet, {"a\0b"s, "\0"s}, 0}, Parsed{Command::kWait, {}, 0},
                          Parsed{Command::kMultiGet, {}, 0}, Parsed{Command::kMultiSet, {}, 0}));
}

TEST(RequestParser, ReadsManyPipelinedRequestsInOneChunk) {
  std::string bytes = handshake();
  constexpr int kRequests = 200'000;
  for (int i = 0; i < kRequests; ++i) bytes += request(Command::kAdd, {"/c"}, i);
  RequestParser parser;
  parser.feed(bytes);
  for (int i = 0; i < kRequests; ++i) {
    const Request* got = parser.next();
    ASSERT_NE(got, nullptr);
    ASSERT_EQ(got->number, i);
  }
  EXPECT_EQ(parser.next(), nullptr);
}

// If the parser checked all keys again for each byte, this test would take hours. If it moved
// them, it would take minutes.
TEST(RequestParser, ReadsAListOfTheMostKeysByteByByte) {
  const RequestLimits limits;
  const std::vector<std::string_view> keys(limits.keys, "k");
  const std::string bytes = handshake() + request(Command::kWait, keys);
  RequestParser parser;
  const Request* got = nullptr;
  for (const char byte : bytes) {
    ASSERT_EQ(got, nullptr);
    parser.feed(std::string_view(&byte, 1));
    got = parser.next();
  }
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->strings.size(), limits.keys);
}

// --- the handshake ---

TEST(RequestParser, TakesTheHandshakeSplitAnywhere) {
  for (std::size_t cut = 0; cut <= handshake().size(); ++cut) {
    RequestParser parser;
    parser.feed(handshake().substr(0, cut));
    EXPECT_EQ(parser.next(), nullptr);
    EXPECT_EQ(error_of(parser), "");
    parser.feed(handshake().substr(cut) + request(Command::kPing, {}, 7));
    EXPECT_THAT(take_all(parser), ElementsAre(Parsed{Command::kPing, {}, 7}));
  }
}

TEST(RequestParser, RefusesAWrongMagicAtOnce) {
  RequestParser parser;
  parser.feed("\x00\xCE\xF7\x85\x3D"s);
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_EQ(error_of(parser), "the handshake has 0x3d85f7ce, not 0x3c85f7ce");
}

TEST(RequestParser, RefusesAFirstByteThatNoDialectBeginsWith) {
  for (int first = 12; first < 256; ++first) {
    RequestParser parser;
    parser.feed(std::string(1, static_cast<char>(first)));
    EXPECT_EQ(parser.next(), nullptr);
    EXPECT_THAT(error_of(parser), HasSubstr("which no TCPStore client sends first"));
  }
  RequestParser parser;
  parser.feed("GET /metrics HTTP/1.1\r\n");
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_EQ(error_of(parser), "the first byte is 0x47, which no TCPStore client sends first");
}

// --- the legacy dialects ---

TEST(RequestParser, ReadsTheCapturedBeginningOfPyTorch1) {
  RequestParser parser;
  parser.feed("\x03\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0"s);
  EXPECT_THAT(take_all(parser), ElementsAre(Parsed{Command::kAdd, {"init/"}, 1}));
}

TEST(RequestParser, ReadsALegacySetWhichBeginsAsTheHandshakeDoes) {
  for (const std::size_t size : {std::size_t{5}, RequestLimits{}.key_bytes}) {
    const std::string key(size, 'k');
    const std::string set = request(Command::kSet, {key, "v"}, 0, Dialect::kL1);
    RequestParser parser;
    for (const char byte : set) {
      EXPECT_EQ(parser.next(), nullptr);
      parser.feed(std::string_view(&byte, 1));
    }
    EXPECT_THAT(take_all(parser), ElementsAre(Parsed{Command::kSet, {key, "v"}, 0}));
  }
}

TEST(RequestParser, ReadsTheOpcodesOnWhichTheLegacyDialectsDifferAsItWasTold) {
  const std::string seven = "\x07" + u64(1) + "k";
  const std::string eight = "\x08" + u64(1) + "k";
  RequestParser l1({}, Dialect::kL1);
  l1.feed(seven + eight);
  EXPECT_THAT(take_all(l1), ElementsAre(Parsed{Command::kWatchKey, {"k"}, 0},
                                        Parsed{Command::kDeleteKey, {"k"}, 0}));
  RequestParser l2({}, Dialect::kL2);
  l2.feed(seven + eight + u64(1) + "v");
  EXPECT_THAT(take_all(l2), ElementsAre(Parsed{Command::kDeleteKey, {"k"}, 0},
                                        Parsed{Command::kAppend, {"k", "v"}, 0}));
}

TEST(RequestParser, TakesALegacyConnectionForL2OnceAnOpcodeOfL2Came) {
  for (const Command command : {Command::kMultiGet, Command::kMultiSet, Command::kCancelWait}) {
    RequestParser parser;
    parser.feed(request(Command::kDeleteKey, {"k"}, 0, Dialect::kL1) +
                request(command, {}, 0, Dialect::kL2) +
                request(Command::kDeleteKey, {"k"}, 0, Dialect::kL2) +
                request(Command::kAppend, {"k", "v"}, 0, Dialect::kL2));
    EXPECT_THAT(take_all(parser),
                ElementsAre(Parsed{Command::kDeleteKey, {"k"}, 0}, Parsed{command, {}, 0},
                            Parsed{Command::kDeleteKey, {"k"}, 0},
                            Parsed{Command::kAppend, {"k", "v"}, 0}));
    EXPECT_EQ(error_of(parser), "");
  }
}

TEST(RequestParser, SaysWithTheFirstByteAfterAWaitThatAClientOfL1HasGivenItUp) {
  RequestParser parser;
  parser.feed(request(Command::kWait, {"k"}, 0, Dialect::kL1));
  EXPECT_THAT(take_all(parser), ElementsAre(Parsed{Command::kWait, {"k"}, 0}));
  EXPECT_FALSE(parser.gives_up_wait());
  const std::string next = request(Command::kSet, {"a", "b"}, 0, Dialect::kL1);
  parser.feed(next.substr(0, 1));
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_TRUE(parser.gives_up_wait());
  parser.feed(next.substr(1));
  EXPECT_NE(parser.next(), nullptr);
  EXPECT_TRUE(parser.gives_up_wait()) << "the request may be looked at before it is performed";
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_FALSE(parser.gives_up_wait());
}

TEST(RequestParser, WhoCanCancelAWaitDoesNotGiveItUpOtherwise) {
  for (const Dialect dialect : {Dialect::kL2, Dialect::kModern}) {
    RequestParser parser({}, dialect);
    parser.feed(opening(dialect) + request(Command::kGetNumKeys, {}, 0, dialect) + "\x01");
    EXPECT_NE(parser.next(), nullptr);
    EXPECT_FALSE(parser.gives_up_wait());
  }
}

TEST(RequestParser, RefusesPingBeforeTheHandshake) {
  RequestParser parser;
  parser.feed(request(Command::kPing, {}, 7));
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_NE(error_of(parser), "");
}

TEST(RequestParser, RefusesASecondHandshakeAfterGivingWhatCameBefore) {
  RequestParser parser;
  parser.feed(handshake() + request(Command::kPing, {}, 7) + handshake() +
              request(Command::kPing, {}, 8));
  EXPECT_THAT(take_all(parser), ElementsAre(Parsed{Command::kPing, {}, 7}));
  EXPECT_EQ(error_of(parser), "a second handshake");
  EXPECT_EQ(parser.next(), nullptr);
}

TEST(BeginsAsLegacy, NeedsTheFirstByteOrTheWholeHandshake) {
  EXPECT_EQ(begins_as_legacy(""), std::nullopt);
  EXPECT_EQ(begins_as_legacy("\x03"), true);
  for (std::size_t size = 1; size < handshake().size(); ++size) {
    EXPECT_EQ(begins_as_legacy(handshake().substr(0, size)), std::nullopt);
  }
  EXPECT_EQ(begins_as_legacy(handshake()), false);
  EXPECT_EQ(begins_as_legacy("\x00\x05\0\0\0\0\0\0\0init/"s), true);
}

// --- bad requests ---

TEST(RequestParser, StaysBadOnceItIsBad) {
  RequestParser parser;
  parser.feed(handshake() + "\xFF" + request(Command::kPing, {}, 7));
  EXPECT_EQ(parser.next(), nullptr);
  parser.feed(request(Command::kPing, {}, 8));
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_EQ(error_of(parser), "opcode 255 is not known");
  EXPECT_EQ(parser.refusal()->kind, Refusal::kBadRequest);
}

constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;

struct TooMuch {
  const char* name;
  std::string bytes;
  std::string error;
};

TEST(RequestParser, RefusesHugeSizesOnTheLengthFieldAlone) {
  const std::string key = u64(1) + "k";
  const std::vector<TooMuch> cases{
      {"key", "\x03" + u64(kHuge), "GET: key of 4611686018427387904 bytes (at most 8192)"},
      {"value", "\x01" + key + u64(kHuge),
       "SET: value of 4611686018427387904 bytes (at most 8388608)"},
      {"desired", "\x02" + key + key + u64(~std::uint64_t{0}),
       "COMPARE_SET: value of 18446744073709551615 bytes (at most 8388608)"},
      {"count", "\x06" + u64(kHuge), "WAIT: 4611686018427387904 keys (at most 131072)"},
      {"pairs", "\x0B" + u64(kHuge), "MULTI_SET: 4611686018427387904 keys (at most 131072)"},
      {"key in a list", "\x05" + u64(2) + key + u64(kHuge),
       "CHECK: key of 4611686018427387904 bytes (at most 8192)"},
      {"value in a list", "\x0B" + u64(1) + key + u64(kHuge),
       "MULTI_SET: value of 4611686018427387904 bytes (at most 8388608)"},
  };
  for (const TooMuch& one : cases) {
    RequestParser parser;
    parser.feed(handshake() + one.bytes);
    EXPECT_EQ(parser.next(), nullptr) << one.name;
    EXPECT_EQ(error_of(parser), one.error) << one.name;
    EXPECT_EQ(parser.refusal()->kind, Refusal::kRequestLimit) << one.name;
    EXPECT_LE(parser.capacity(), 4096u) << one.name;
  }
}

TEST(RequestParser, TakesSizesUpToTheLimitsAndNotOneMore) {
  const RequestLimits limits{.key_bytes = 10, .value_bytes = 20, .keys = 3, .request_bytes = 1000};
  const std::string key10(10, 'k'), key11(11, 'k'), value20(20, 'v'), value21(21, 'v');

  EXPECT_EQ(error_after(request(Command::kSet, {key10, value20}), limits), "");
  EXPECT_THAT(error_after(request(Command::kSet, {key11, value20}), limits),
              HasSubstr("key of 11"));
  EXPECT_THAT(error_after(request(Command::kSet, {key10, value21}), limits),
              HasSubstr("value of 21"));
  EXPECT_EQ(error_after(request(Command::kWait, {"a", "b", key10}), limits), "");
  EXPECT_THAT(error_after(request(Command::kWait, {"a", "b", "c", "d"}), limits),
              HasSubstr("4 keys"));
  EXPECT_EQ(error_after(request(Command::kMultiSet, {"a", "", "b", "", "c", value20}), limits), "");
  EXPECT_THAT(
      error_after(request(Command::kMultiSet, {"a", "", "b", "", "c", "", "d", ""}), limits),
      HasSubstr("4 keys"));
}

TEST(RequestParser, TakesTheDefaultLimitsAndNotOneMore) {
  const RequestLimits limits;
  const std::string key(limits.key_bytes, 'k');
  const std::string value(limits.value_bytes, 'v');
  EXPECT_EQ(error_after(request(Command::kSet, {key, value})), "");
  EXPECT_NE(error_after(request(Command::kSet, {key + "k", ""})), "");
  EXPECT_NE(error_after(request(Command::kSet, {"", value + "v"})), "");
}

TEST(RequestParser, BoundsTheBytesOfAWholeRequest) {
  // Opcode, count, and two keys with their lengths: 1 + 8 + 2 * (8 + 10).
  const RequestLimits limits{.key_bytes = 10, .value_bytes = 20, .keys = 3, .request_bytes = 45};
  const std::string key10(10, 'k');
  EXPECT_EQ(error_after(request(Command::kWait, {key10, key10}), limits), "");
  EXPECT_EQ(error_after(request(Command::kWait, {key10, key10, ""}), limits),
            "WAIT: request of 53 bytes (at most 45)");
}

TEST(RequestParser, TakesNoMemoryForBytesThatWereOnlyAnnounced) {
  const RequestLimits limits;
  RequestParser parser;
  parser.feed(handshake() + "\x01" + u64(1) + "k" + u64(limits.value_bytes));
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_EQ(error_of(parser), "");
  EXPECT_LE(parser.space().size(), 8192u);
  EXPECT_LE(parser.capacity(), 8192u);
}

TEST(RequestParser, OffersMoreRoomAsALargeValueArrivesAndGivesItBack) {
  const RequestLimits limits;
  const std::string bytes =
      handshake() + request(Command::kSet, {"k", std::string(limits.value_bytes, 'v')});
  RequestParser parser;
  int reads = 0;
  for (std::string_view rest = bytes; !rest.empty(); ++reads) {
    const std::span<char> space = parser.space();
    const std::size_t count = std::min(space.size(), rest.size());
    std::copy_n(rest.begin(), count, space.begin());
    parser.commit(count);
    rest.remove_prefix(count);
    EXPECT_LE(parser.capacity(), 2 * (bytes.size() - rest.size()) + 8192);
    if (!rest.empty()) {
      ASSERT_EQ(parser.next(), nullptr);
    }
  }
  EXPECT_LT(reads, 50);
  ASSERT_NE(parser.next(), nullptr);
  EXPECT_EQ(parser.next(), nullptr);
  EXPECT_EQ(parser.capacity(), 0u);
}

// --- the client's half ---

TEST(RefusalOf, SaysWhatTheParserWouldSay) {
  const RequestLimits limits{.key_bytes = 10, .value_bytes = 20, .keys = 3, .request_bytes = 60};
  const std::string key11(11, 'k'), key10(10, 'k'), value20(20, 'v'), value21(21, 'v');
  const std::vector<std::pair<Command, std::vector<std::string_view>>> cases{
      {Command::kSet, {key10, value20}},
      {Command::kSet, {key11, value20}},
      {Command::kSet, {key10, value21}},
      {Command::kCompareSet, {key10, value20, ""}},
      {Command::kCompareSet, {key10, value20, value20}},
      {Command::kWait, {"a", "b", "c"}},
      {Command::kWait, {"a", "b", "c", "d"}},
      {Command::kWait, {"a", key11}},
      {Command::kMultiSet, {"a", "1", "b", "2"}},
      {Command::kMultiSet, {"a", value21}},
      {Command::kMultiSet, {key11, ""}},
      {Command::kMultiSet, {"a", "", "b", "", "c", "", "d", ""}},
      {Command::kListKeys, {}},
  };
  for (const auto& [command, strings] : cases) {
    const std::string parsed = error_after(request(command, strings), limits);
    const std::string refusal = refusal_of(command, strings, limits);
    EXPECT_EQ(refusal.empty(), parsed.empty()) << parsed << " / " << refusal;
    EXPECT_THAT(parsed, HasSubstr(refusal));
  }
}

TEST(ReplyReader, GivesAFieldOnlyWhenItIsWhole) {
  std::string bytes;
  put_u8(bytes, 1);
  put_i64(bytes, -2);
  put_string(bytes, "value");
  put_string(bytes, "");

  ReplyReader reader;
  std::optional<std::uint8_t> byte;
  std::optional<std::int64_t> number;
  std::optional<std::string> text, none;
  for (const char one : bytes) {
    reader.feed(std::string_view(&one, 1));
    if (!byte) {
      byte = reader.take_u8();
    } else if (!number) {
      number = reader.take_i64();
    } else if (!text) {
      text = reader.take_string();
    } else {
      none = reader.take_string();
    }
  }
  EXPECT_EQ(byte, 1);
  EXPECT_EQ(number, -2);
  EXPECT_EQ(text, "value");
  EXPECT_EQ(none, "");
  EXPECT_TRUE(reader.empty());
}

TEST(ReplyReader, TakesAnImpossibleLengthForNonsense) {
  ReplyReader reader;
  reader.feed(u64(kHuge));
  EXPECT_EQ(reader.take_string(), std::nullopt);
  EXPECT_TRUE(reader.failed());
}

}  // namespace
}  // namespace ddprun
