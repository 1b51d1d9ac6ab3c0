#include "worker_lib/serialization/core/unpickler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using namespace std::string_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = PickleKind;

std::string bytes_of(std::uint64_t value, int bytes) {
  std::string result;
  for (int i = 0; i < bytes; ++i) result += static_cast<char>(value >> (8 * i));
  return result;
}

std::string text(const std::string& value) { return "X" + bytes_of(value.size(), 4) + value; }
std::string integer(std::int32_t value) {
  return "J" + bytes_of(static_cast<std::uint32_t>(value), 4);
}
std::string wide(std::int64_t value) {
  return "\x8a\x08" + bytes_of(static_cast<std::uint64_t>(value), 8);
}
std::string pickled(const std::string& opcodes) { return "\x80\x02" + opcodes + "."; }

std::string storage(const std::string& its_class, std::int64_t elements,
                    const std::string& key = "0") {
  return "(" + text("storage") + "ctorch\n" + its_class + "\n" + text(key) + text("cpu") +
         wide(elements) + "tQ";
}
std::string tuple(const std::vector<std::int64_t>& values) {
  std::string result = "(";
  for (const std::int64_t value : values) result += wide(value);
  return result + "t";
}
// Returns the pickle of a tensor whose storage has 8 floats.
std::string tensor(std::int64_t offset, const std::vector<std::int64_t>& sizes,
                   const std::vector<std::int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage("FloatStorage", 8) + wide(offset) +
         tuple(sizes) + tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

void expect_refused(const std::string& pickle, ErrorKind kind, const std::string& words) {
  const Result<PickleTree> tree = unpickle(pickle);
  ASSERT_FALSE(tree) << "expected: " << words;
  EXPECT_EQ(tree.error().kind, kind) << tree.error().message();
  EXPECT_THAT(tree.error().message(), HasSubstr(words));
}

TEST(Unpickler, AForeignNameIsRefusedByItsNameAndPlace) {
  expect_refused(
      "\x80\x02"
      "cposix\nsystem\nX\x02\0\0\0ls\x85R."s,
      ErrorKind::kUnsupported, "unpickle: at byte 2: it names posix.system, which is not allowed");
  for (const char* name : {"os\nsystem", "builtins\neval", "__builtin__\ngetattr", "torch\nload",
                           "torch.hub\nload", "numpy.core.multiarray\nscalar", "torch\nSize.x"})
    expect_refused(pickled("c"s + name + "\n)R"), ErrorKind::kUnsupported, "is not allowed");
  expect_refused(pickled("\x8c\x02os\x8c\x06system\x93)R"), ErrorKind::kUnsupported, "os.system");
  expect_refused(pickled("(" + text("ls") + "ios\nsystem\n"), ErrorKind::kUnsupported,
                 "opcode 105");
}

TEST(Unpickler, EveryPrefixOfAPickleIsRefused) {
  const std::string whole =
      pickled("}(" + text("w") + tensor(0, {2, 4}, {4, 1}) + text("n") + wide(7) + "u");
  ASSERT_TRUE(unpickle(whole)) << unpickle(whole).error().message();
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(unpickle(std::string_view(whole).substr(0, length))) << length;
  expect_refused(whole + "N.", ErrorKind::kCorrupt, "bytes follow its end");
}

TEST(Unpickler, ALengthTakesNoMemoryOnItsWord) {
  expect_refused(pickled("X\xff\xff\xff\xff"s), ErrorKind::kCorrupt, "cut off");
  expect_refused(pickled("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s), ErrorKind::kCorrupt, "cut off");
  expect_refused(pickled("\x8b\xff\xff\xff\x7f"s), ErrorKind::kCorrupt, "cut off");
  expect_refused(pickled("\x95\xff\xff\xff\xff\xff\xff\xff\xffN"s), ErrorKind::kCorrupt, "cut off");
}

TEST(Unpickler, DepthAndSizeAreBounded) {
  expect_refused(pickled(std::string(200'000, ']') + std::string(199'999, 'a')),
                 ErrorKind::kUnsupported, "nested deeper than 100");
  std::string tuples = ")";
  for (int i = 0; i < 200'000; ++i) tuples += '\x85';
  expect_refused(pickled(tuples), ErrorKind::kUnsupported, "nested deeper than 100");
  // Each list holds the list before it twice: 2^60 values in 400 bytes.
  std::string doubling = "]q\x01"s;
  for (int i = 0; i < 60; ++i)
    doubling += "]"s +
                "(h\x01h\x01"
                "eq\x01"s;
  expect_refused(pickled("(" + doubling + "t"), ErrorKind::kUnsupported, "values");
  expect_refused(pickled("]q\x01h\x01"s + "a"), ErrorKind::kCorrupt, "contains itself");
  // Many sets are made from one long list.
  std::string list = "](";
  for (int i = 0; i < 10'000; ++i) list += "M" + bytes_of(static_cast<std::uint64_t>(i), 2);
  list += "eq\x01"s;
  for (int i = 0; i < 1000; ++i) list += "c__builtin__\nset\nh\x01\x85R"s;
  expect_refused(pickled("(" + list + "t"), ErrorKind::kUnsupported, "values");
}

// A file that can be written must also be readable, however many values it has.
TEST(Unpickler, ALargerPickleMayHaveMoreValues) {
  constexpr std::size_t kValues = kMaxPickleNodes + 10;
  const auto tree = unpickle(pickled("](" + std::string(kValues, 'N') + "e"));
  ASSERT_TRUE(tree) << tree.error().message();
  EXPECT_EQ((*tree)[tree->top].items.size(), kValues);
  EXPECT_EQ(max_pickle_nodes(100), kMaxPickleNodes);
  EXPECT_EQ(max_pickle_nodes(std::size_t{1} << 40), std::size_t{0xffffffff});
}

TEST(Unpickler, NoTensorReachesBeyondItsStorage) {
  const std::int64_t huge = INT64_MAX;
  for (const auto& wrong :
       {tensor(0, {9}, {1}), tensor(1, {8}, {1}), tensor(9, {0}, {1}), tensor(0, {2}, {8}),
        tensor(0, {2, 2}, {6, 2}), tensor(-1, {1}, {1}), tensor(0, {3}, {huge}),
        tensor(huge, {2}, {1}), tensor(0, {huge, huge}, {0, 0}), tensor(0, {2}, {-1}),
        tensor(0, {-2}, {1}), tensor(0, {2}, {1, 1})}) {
    const Result<PickleTree> tree = unpickle(pickled(wrong));
    ASSERT_FALSE(tree);
    EXPECT_EQ(tree.error().kind, ErrorKind::kCorrupt) << tree.error().message();
  }
  expect_refused(pickled(tensor(0, {9}, {1})), ErrorKind::kCorrupt,
                 "a tensor reaches beyond the 8 elements of its storage '0'");
  for (const auto& right : {tensor(0, {8}, {1}), tensor(7, {1}, {99}), tensor(8, {0}, {1}),
                            tensor(0, {2, 4}, {4, 1}), tensor(3, {1000}, {0}), tensor(7, {}, {})})
    EXPECT_TRUE(unpickle(pickled(right)));
}

TEST(Unpickler, WhatCannotBeMeantIsRefused) {
  for (const char* opcodes : {"",
                              "(",
                              "N\x85\x86",
                              "]t",
                              "a",
                              "NNa",
                              "}Ns",
                              "}(Nu",
                              "}]Ns",
                              "Nb",
                              "h\x05",
                              "NQ",
                              "NR",
                              "N)R",
                              "ctorch\nTensor\n)R",
                              "ctorch\nfloat32\n)R",
                              "ctorch\nTensor\n",
                              "]ctorch\nTensor\na",
                              "NN",
                              "X\x01",
                              "\x8c\x01\xff"})
    EXPECT_FALSE(unpickle(pickled(opcodes))) << opcodes;
  expect_refused("\x80\x01N.", ErrorKind::kUnsupported, "pickle protocol 1, 2 to 5 are read");
  expect_refused(pickled("}" + text("a") + "Ns" + text("a") + "Ns"), ErrorKind::kCorrupt, "twice");
  expect_refused(pickled("}]Ns"), ErrorKind::kCorrupt, "a key is a list");
}

TEST(Unpickler, PlainValuesAreWhatTheyWere) {
  const auto tree = unpickle(pickled("(N\x88\x89" + integer(-5) + "M\xff\xff" + text("\xC3\xBC") +
                                     "G\x3f\xf8\0\0\0\0\0\0"s + "C\x02\xff\0"s + "]}\x8f)t"));
  ASSERT_TRUE(tree) << tree.error().message();
  std::vector<Kind> kinds;
  const PickleNode& top = (*tree)[tree->top];
  for (const PickleNodeId id : top.items) kinds.push_back((*tree)[id].kind);
  EXPECT_THAT(kinds, ElementsAre(Kind::kNone, Kind::kBool, Kind::kBool, Kind::kInteger,
                                 Kind::kInteger, Kind::kString, Kind::kDouble, Kind::kBytes,
                                 Kind::kList, Kind::kDict, Kind::kSet, Kind::kTuple));
  const auto item = [&](std::size_t i) { return (*tree)[top.items[i]]; };
  EXPECT_EQ(item(1).integer, 1);
  EXPECT_EQ(item(2).integer, 0);
  EXPECT_EQ(item(3).integer, -5);
  EXPECT_EQ(item(4).integer, 65535);
  EXPECT_EQ(item(5).text, "\xC3\xBC");
  EXPECT_EQ(item(6).real, 1.5);
  EXPECT_EQ(item(7).text, "\xff\0"s);
}

TEST(Unpickler, IntegersOfAnyLengthAreKeptExactly) {
  const auto read = [](const std::string& opcodes) {
    const auto tree = unpickle(pickled(opcodes));
    return tree ? (*tree)[tree->top] : PickleNode();
  };
  EXPECT_EQ(read("\x8a\0"s).integer, 0);
  EXPECT_EQ(read("\x8a\x05\0\0\0\x80\0"s).integer, std::int64_t{1} << 31);
  EXPECT_EQ(read("\x8a\x06\0\0\0\0\0\x01"s).integer, std::int64_t{1} << 40);
  EXPECT_EQ(read("\x8a\x01\xff"s).integer, -1);
  EXPECT_EQ(read(wide(INT64_MIN)).integer, INT64_MIN);
  EXPECT_EQ(read("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0"s).integer, INT64_MAX);
  const PickleNode big = read("\x8a\x09\0\0\0\0\0\0\0\x80\0"s);  // 2^63
  EXPECT_EQ(big.kind, Kind::kBigInteger);
  EXPECT_EQ(read("\x8a\x09\0\0\0\0\0\0\0\0\x40"s).kind, Kind::kBigInteger);  // 2^70
}

TEST(Unpickler, AStateDictOfPython) {
  // The dict is an OrderedDict with _metadata, two tensors of one storage, and a Parameter.
  const std::string dict = "ccollections\nOrderedDict\n)R(" + text("w") +
                           tensor(0, {2, 4}, {4, 1}) + text("p") +
                           "ctorch._utils\n_rebuild_parameter\n" + tensor(4, {4}, {1}) +
                           "\x88"
                           "ccollections\nOrderedDict\n)R\x87R" +
                           "u" + "}" + text("_metadata") + "}sb";
  const auto tree = unpickle(pickled(dict));
  ASSERT_TRUE(tree) << tree.error().message();
  const PickleNode& top = (*tree)[tree->top];
  EXPECT_EQ(top.items.size(), 4u);
  EXPECT_EQ(tree->find(top, "_metadata"), nullptr);
  const auto described = [&](const char* key) {
    return tree->tensors.at(static_cast<std::size_t>(tree->find(top, key)->integer));
  };
  EXPECT_EQ(described("w").storage.key, "0");
  EXPECT_EQ(described("w").storage.bytes, 32);
  EXPECT_EQ(described("w").dtype.name, "float32");
  EXPECT_THAT(described("w").sizes, ElementsAre(2, 4));
  EXPECT_THAT(described("w").strides, ElementsAre(4, 1));
  EXPECT_FALSE(described("w").requires_grad);
  EXPECT_EQ(described("p").offset, 4);
  EXPECT_TRUE(described("p").requires_grad);
}

// The arguments of a tensor make room for the next one's, unless the pickle can still refer to
// them: from the memo, or from another value that has the same items.
TEST(Unpickler, OnlyArgumentsThatNothingElseHasAreGivenUp) {
  const std::string begin =
      "ctorch._utils\n_rebuild_tensor_v2\n(" + storage("FloatStorage", 8) + wide(0);
  const std::string end = tuple({4, 1}) + "\x89" + "ccollections\nOrderedDict\n)Rt";
  const std::string sizes = begin + tuple({2, 4}) + "q\x01" + end + "R";
  const std::string size = begin + "ctorch\nSize\n" + tuple({2, 4}) + "q\x02\x85R" + end + "R";
  const std::string arguments = begin + tuple({2, 4}) + end + "q\x03R";
  const std::string again = "ctorch._utils\n_rebuild_tensor_v2\nh\x03R";
  const auto tree = unpickle(pickled("(" + sizes + size + arguments + tensor(7, {1}, {99}) +
                                     text("a") + text("b") + "h\x01h\x02" + again + "t"));
  ASSERT_TRUE(tree) << tree.error().message();
  const std::vector<PickleNodeId>& items = (*tree)[tree->top].items;
  ASSERT_EQ(items.size(), 9u);
  EXPECT_EQ((*tree)[items[4]].text, "a");
  EXPECT_EQ((*tree)[items[5]].text, "b");
  for (const std::size_t i : {6u, 7u}) {
    std::vector<std::int64_t> values;
    for (const PickleNodeId id : (*tree)[items[i]].items) values.push_back((*tree)[id].integer);
    EXPECT_THAT(values, ElementsAre(2, 4)) << i;
  }
  EXPECT_THAT(tree->tensors.at(3).strides, ElementsAre(99));
  EXPECT_THAT(tree->tensors.at(4).sizes, ElementsAre(2, 4));

  std::string many;
  for (int i = 0; i < 1000; ++i) many += tensor(0, {2, 4}, {4, 1});
  const auto large = unpickle(pickled("(" + many + "t"));
  ASSERT_TRUE(large) << large.error().message();
  EXPECT_EQ(large->tensors.size(), 1000u);
  EXPECT_LT(large->nodes.size(), 1100u);
}

TEST(Unpickler, NumbersOfTheMemoMayHaveGaps) {
  const auto tree =
      unpickle(pickled("(" + text("a") + "q\x05" + text("b") + "q\0"s + text("c") + "q\x01" +
                       text("d") + "q\x05" + text("e") + "\x94" + "h\x05h\0h\x01h\x03"s + "t"));
  ASSERT_TRUE(tree) << tree.error().message();
  std::string texts;
  for (const PickleNodeId id : (*tree)[tree->top].items) texts += (*tree)[id].text;
  EXPECT_EQ(texts, "abcdedbce");
  expect_refused(pickled("(" + text("a") + "q\x05" + "h\x04" + "t"), ErrorKind::kCorrupt,
                 "refers to value 4, which it has not");
}

TEST(Unpickler, KeysOfAllKindsAreThereOnce) {
  const auto dict = [](const std::string& keys) { return unpickle(pickled("}(" + keys + "u")); };
  EXPECT_TRUE(dict(text("b") + "N" + text("a") + "N"));
  EXPECT_TRUE(dict("K\x02NK\x01N"));
  EXPECT_TRUE(dict("K\x01N" + text("1") + "N\x88N"));
  for (const std::string& twice :
       {text("b") + "N" + text("a") + "N" + text("b") + "N", "K\x01NK\x02NK\x01N"s,
        "K\x01N" + text("1") + "NK\x01N", "K\x01N" + wide(1) + "N"}) {
    const auto tree = dict(twice);
    ASSERT_FALSE(tree);
    EXPECT_THAT(tree.error().message(), HasSubstr("is there twice"));
  }
}

TEST(Unpickler, ByteStoragesLeaveTheDtypeToTheTensor) {
  const std::string v3 = "ctorch._utils\n_rebuild_tensor_v3\n((" + text("storage") +
                         "ctorch.storage\nUntypedStorage\n" + text("1") + text("cpu") + wide(5) +
                         "tQ" + wide(0) + tuple({2}) + tuple({1}) +
                         "\x89"
                         "ccollections\nOrderedDict\n)Rctorch\nuint16\ntR";
  const auto tree = unpickle(pickled(v3));
  ASSERT_TRUE(tree) << tree.error().message();
  EXPECT_EQ(tree->tensors.at(0).dtype.name, "uint16");
  std::string three = v3;
  three.replace(three.find(tuple({2})), tuple({2}).size(), tuple({3}));
  expect_refused(pickled(three), ErrorKind::kCorrupt, "beyond the 2 elements");
}

TEST(Unpickler, SizesDevicesDtypesBytesAndSets) {
  const auto top = [](const std::string& opcodes) {
    const auto tree = unpickle(pickled(opcodes));
    EXPECT_TRUE(tree) << tree.error().message();
    return tree ? (*tree)[tree->top] : PickleNode();
  };
  EXPECT_EQ(top("ctorch\nSize\n" + tuple({2, 3}) + "\x85R").items.size(), 2u);
  EXPECT_EQ(top("ctorch\ndevice\n" + text("cuda") + "K\x01\x86R").text, "cuda:1");
  EXPECT_EQ(top("ctorch\nbfloat16\n").text, "bfloat16");
  EXPECT_EQ(top("c_codecs\nencode\n" + text("x\xC3\xBF") + text("latin1") + "\x86R").text, "x\xff");
  EXPECT_EQ(top("c__builtin__\nset\n](K\x01K\x02"
                "e\x85R")
                .items.size(),
            2u);
}

TEST(Unpickler, ObjectsOfDistributedCheckpointsAreDictsOfTheirAttributes) {
  const std::string metadata = "ctorch.distributed.checkpoint.metadata\n";
  const std::string index = metadata + "MetadataIndex\n)\x81}(" + text("fqn") + text("a") + "ub";
  const std::string object =
      pickled("}(" + index + metadata + "TensorProperties\n)\x81(ctorch\n" + "float32\n\x89tbu");
  const Result<PickleTree> tree = unpickle(object, PickleNames::kDcp);
  ASSERT_TRUE(tree) << tree.error().message();
  const std::vector<PickleEntry> entries = entries_of((*tree)[tree->top]);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(tree->find((*tree)[entries[0].key], "fqn")->text, "a");
  const PickleNode* const state = tree->find((*tree)[entries[0].value], "state");
  ASSERT_TRUE(state && state->kind == Kind::kTuple);
  EXPECT_EQ((*tree)[state->items[0]].text, "float32");
  expect_refused(object, ErrorKind::kUnsupported, "MetadataIndex, which is not allowed");
  const auto refused = [](const std::string& opcodes) {
    return !unpickle(pickled(opcodes), PickleNames::kDcp);
  };
  EXPECT_TRUE(refused("}(" + index + "N" + index + "Nu")) << "the same key twice";
  EXPECT_TRUE(refused(metadata + "MetadataIndex\n")) << "a class itself";
  EXPECT_TRUE(refused(metadata + "Metadata\n)\x81q\0}("s + text("self") + "h\0ub"s)) << "a cycle";
  EXPECT_TRUE(refused("cos\nsystem\n)\x81"));
}

}  // namespace
}  // namespace ddprun
