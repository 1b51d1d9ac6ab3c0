#include "worker_lib/checkpoint/shared_read.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/concat.h"
#include "worker_lib/checkpoint/core/piece_layout.h"
#include "worker_lib/checkpoint/core/reading_order.h"
#include "worker_lib/checkpoint/piece_reader.h"
#include "worker_lib/checkpoint/search.h"
#include "worker_lib/group/every_rank.h"
#include "worker_lib/serialization/core/pickle_value.h"
#include "worker_lib/util/error_bridge.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr std::uint64_t kGatheredBytes = 32 << 20;  // of all ranks together
constexpr std::uint64_t kLeastPieceBytes = 16 << 10;
constexpr std::uint64_t kFlagBytes = 8;  // after a piece: whether its reader has failed

// Returns a power of 2, so that pieces end where a chain has states.
std::uint64_t piece_bytes_for(int ranks) {
  const std::uint64_t most = kGatheredBytes / static_cast<std::uint64_t>(ranks);
  return std::clamp(std::bit_floor(most), kLeastPieceBytes, kPieceBytes);
}

// A piece of a rank, and which of its readers reads it.
struct ReadPiece {
  FileRange range;
  std::size_t reader = 0;
};

// Returns the pieces of each rank in the order of the rounds. The readers of a rank take turns, so
// that all of them work at the same time.
std::vector<std::vector<ReadPiece>> pieces_by_rank(const CheckpointManifest& manifest, int ranks,
                                                   int readers, std::uint64_t piece_bytes) {
  const auto shares = reading_order(manifest.files, ranks * readers);
  std::vector<std::vector<ReadPiece>> result(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    std::vector<std::vector<FileRange>> of_readers;
    std::size_t most = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(readers); ++i) {
      const std::size_t share = rank * static_cast<std::size_t>(readers) + i;
      of_readers.push_back(in_pieces(shares[share], piece_bytes));
      most = std::max(most, of_readers.back().size());
    }
    for (std::size_t turn = 0; turn < most; ++turn)
      for (std::size_t i = 0; i < of_readers.size(); ++i)
        if (turn < of_readers[i].size()) result[rank].push_back({of_readers[i][turn], i});
  }
  return result;
}

std::uint64_t largest(const std::vector<std::vector<ReadPiece>>& pieces) {
  std::uint64_t result = 0;
  for (const auto& of_rank : pieces)
    for (const ReadPiece& piece : of_rank) result = std::max(result, piece.range.bytes());
  return result;
}

// RankReaders: the readers of this rank, each with threads of its own.
class RankReaders {
 public:
  RankReaders(const CheckpointDirectory& directory, const CheckpointManifest& manifest,
              const std::vector<ReadPiece>& pieces, const PieceLayout& layout = kAllInBuffer,
              std::uint64_t room = 0)
      : pieces_(pieces) {
    std::vector<std::vector<FileRange>> ranges;
    for (const ReadPiece& piece : pieces_) {
      if (piece.reader >= ranges.size()) ranges.resize(piece.reader + 1);
      ranges[piece.reader].push_back(piece.range);
    }
    for (std::vector<FileRange>& of_reader : ranges)
      readers_.push_back(
          std::make_unique<PieceReader>(directory, manifest, std::move(of_reader), layout, room));
  }

  // Do the same as PieceReader::next() and failure().
  std::optional<PieceReader::Piece> next() {
    if (failure_) return std::nullopt;
    if (next_ == pieces_.size()) {
      for (const auto& reader : readers_) {  // waits for its last digest
        (void)reader->next();
        if (!failure_) failure_ = reader->failure();
      }
      return std::nullopt;
    }
    PieceReader& reader = *readers_[pieces_[next_++].reader];
    const auto piece = reader.next();
    failure_ = reader.failure();
    return piece;
  }
  const std::optional<Error>& failure() const { return failure_; }

 private:
  const std::vector<ReadPiece>& pieces_;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<PieceReader>> readers_;
  std::optional<Error> failure_;
};

// Returns the tensors of the files that have at least `least` bytes, with the memory of those that
// this rank reads on the CPU, by file. Ranks with the same outlines find the same.
LargeTensors large_tensors(const std::vector<FileOutline>& outlines,
                           const std::vector<std::vector<Destination>>& destinations,
                           std::size_t least) {
  LargeTensors result(outlines.size());
  for (std::size_t file = 0; file < outlines.size(); ++file) {
    std::vector<LargeTensor>& of_file = result[file];
    for (const PickleTensor& tensor : outlines[file].archive().tree.tensors) {
      const std::string_view bytes = tensor.storage.contents;
      if (bytes.size() < least) continue;
      const std::uint64_t begin = outlines[file].position_of(bytes);
      of_file.push_back({begin, begin + bytes.size()});
    }
    std::ranges::sort(of_file, {}, &LargeTensor::begin);
    const auto repeated = std::ranges::unique(of_file, {}, &LargeTensor::begin);
    of_file.erase(repeated.begin(), repeated.end());
    for (const Destination& one : destinations[file]) {
      const auto found = std::ranges::lower_bound(of_file, one.at, {}, &LargeTensor::begin);
      if (one.device.is_cpu() && found != of_file.end() && found->begin == one.at &&
          found->end == one.at + one.bytes)
        found->memory = static_cast<char*>(one.memory);
    }
  }
  return result;
}

std::string bounds_of(const LargeTensors& tensors) {
  std::string result;
  for (const std::vector<LargeTensor>& of_file : tensors) {
    for (const LargeTensor& tensor : of_file) result += concat(tensor.begin, "-", tensor.end, " ");
    result += '\n';
  }
  return result;
}

// How the ranks read.
struct ReadingPlan {
  int readers = 1;  // of each rank
  PieceLayout layout;
};

// Returns the same on every rank, except for the memory in the layout. There are as many readers as
// keep the processors digesting that the rank may use, if the ranks are on one host. Ranks that do
// not find the same large tensors read nothing into them directly. Collective.
ReadingPlan agree_on_reading(ProcessGroup& group, const std::vector<FileOutline>& outlines,
                             const std::vector<std::vector<Destination>>& destinations,
                             Timeout timeout) {
  // A round then has some hundred parts at most, which take less time than copies of their bytes.
  const std::size_t least = static_cast<std::size_t>(group.size()) * (128 << 10);
  const int most = group.size() == 1 ? 4 : 2;
  LargeTensors tensors;
  const auto answers = on_every_rank(group, kRestoring, timeout, [&]() -> json {
    if (group.size() == 1 || group.device().is_cpu())
      tensors = large_tensors(outlines, destinations, least);
    return {static_cast<int>(std::thread::hardware_concurrency()) / group.size(),
            sha256_hex(bounds_of(tensors))};
  });
  int readers = most;
  for (const json& one : answers) {
    readers = std::min(readers, one.at(0).get<int>());
    if (one.at(1) != answers[0].at(1)) tensors.clear();
  }
  return {std::max(readers, 1), PieceLayout(std::move(tensors))};
}

torch::Tensor as_tensor(void* memory, std::uint64_t bytes, c10::Device device) {
  return torch::from_blob(memory, {static_cast<std::int64_t>(bytes)},
                          torch::dtype(torch::kUInt8).device(device));
}

// Exchange: passes each rank's piece to all ranks. Every round has one piece of each rank, and
// whether that rank has failed. In memory of the CPU, a piece is sent from where it was read to,
// and received where the layout has it.
class Exchange {
 public:
  // readers: the ranks that have pieces at all.
  Exchange(ProcessGroup& group, std::vector<int> readers, const PieceLayout& layout,
           std::uint64_t piece_bytes, Timeout timeout)
      : group_(group),
        device_(group.size() == 1 ? c10::Device(c10::kCPU) : group.device()),
        readers_(std::move(readers)),
        layout_(layout),
        timeout_(timeout),
        row_bytes_(piece_bytes + kFlagBytes),
        parts_(static_cast<std::size_t>(group.size())) {
    if (group.size() == 1) return;
    const std::int64_t rows = is_alone() ? 1 : group.size();
    rows_ = torch::zeros({rows, static_cast<std::int64_t>(row_bytes_)},
                         torch::dtype(torch::kUInt8).device(device_));
  }

  // The bytes of the buffer that a piece for put() begins.
  std::uint64_t room() const { return group_.size() == 1 ? 0 : row_bytes_; }

  // Takes this rank's piece, if there is one, for the next run().
  void put(const std::optional<PieceReader::Piece>& piece) {
    own_ = piece ? piece->data : nullptr;
    if (!piece || group_.size() == 1) return;
    const std::uint64_t read = piece->range.bytes();
    // The last piece is shorter. What follows it goes to the others, too.
    if (device_.is_cpu())
      std::memset(own_ + read, 0, row_bytes_ - kFlagBytes - read);
    else
      as_tensor(row_of(group_.rank()), read, device_).copy_(as_tensor(own_, read, torch::kCPU));
  }
  // Sends it. pieces: those of this round, by rank; a rank that has none has an empty one. Returns
  // whether a rank has failed. Collective.
  bool run(const std::vector<FileRange>& pieces, bool has_failed) {
    if (group_.size() == 1 && has_failed) return true;
    const auto cuts = layout_.cuts(pieces, group_.size() == 1 ? pieces[0].bytes() : row_bytes_);
    for (std::size_t rank = 0; rank < pieces.size(); ++rank)
      parts_[rank] = layout_.parts(pieces[rank], cuts, buffer_of(static_cast<int>(rank)));
    if (group_.size() == 1) return false;
    const bool is_reader = !is_alone() || readers_[0] == group_.rank();
    if (is_reader)
      flag_of(as_tensor(buffer_of(group_.rank()), row_bytes_, device_)).fill_(has_failed ? 1 : 0);
    const LongWait for_the_others(group_);
    if (is_alone()) {
      group_.broadcast_coalesced(tensors_of(readers_[0]),
                                 {.root = readers_[0], .timeout = timeout_});
      return is_reader ? has_failed : flag_of(rows_).any().item<bool>();
    }
    std::vector<std::vector<torch::Tensor>> outputs;
    for (int rank = 0; rank < group_.size(); ++rank) outputs.push_back(tensors_of(rank));
    group_.all_gather_coalesced(outputs, outputs[static_cast<std::size_t>(group_.rank())],
                                {.timeout = timeout_});
    return has_failed || flag_of(rows_).any().item<bool>();
  }

  // Return the parts of the last piece of a rank, and the bytes of one.
  const std::vector<PiecePart>& parts_of(int rank) const {
    return parts_[static_cast<std::size_t>(rank)];
  }
  torch::Tensor bytes_of(const PiecePart& part) const {
    return as_tensor(part.memory, part.range.bytes(), device_);
  }

 private:
  // One rank reads everything.
  bool is_alone() const { return readers_.size() <= 1; }
  static torch::Tensor flag_of(const torch::Tensor& rows) {
    const auto flag = static_cast<std::int64_t>(kFlagBytes);
    return rows.narrow(-1, rows.size(-1) - flag, flag);
  }
  char* row_of(int rank) const {
    const std::uint64_t row = is_alone() ? 0 : static_cast<std::uint64_t>(rank);
    return static_cast<char*>(rows_.data_ptr()) + row * row_bytes_;
  }
  char* buffer_of(int rank) const {
    const bool is_own = rank == group_.rank() && own_ && device_.is_cpu();
    return is_own ? own_ : row_of(rank);
  }
  std::vector<torch::Tensor> tensors_of(int rank) const {
    std::vector<torch::Tensor> result;
    for (const PiecePart& part : parts_of(rank))
      result.push_back(as_tensor(part.memory, part.bytes, device_));
    return result;
  }

  ProcessGroup& group_;
  const c10::Device device_;
  const std::vector<int> readers_;
  const PieceLayout& layout_;
  const Timeout timeout_;
  const std::uint64_t row_bytes_;
  torch::Tensor rows_;   // the buffers of all ranks, or of the only one that reads
  char* own_ = nullptr;  // this rank's piece, in memory of the CPU
  std::vector<std::vector<PiecePart>> parts_;  // by rank
};

// Calls `use(bytes, memory)` for the part of a piece that belongs to a destination.
template <class Use>
void with_common(const FileRange& range, const torch::Tensor& piece, const Destination& one,
                 Use&& use) {
  const std::uint64_t begin = std::max(range.begin, one.at);
  const std::uint64_t end = std::min(range.end, one.at + one.bytes);
  if (begin >= end) return;
  use(piece.narrow(0, static_cast<std::int64_t>(begin - range.begin),
                   static_cast<std::int64_t>(end - begin)),
      as_tensor(static_cast<char*>(one.memory) + (begin - one.at), end - begin, one.device));
}

// Small tensors are copied without LibTorch, which takes microseconds for each.
void place(const FileRange& range, const torch::Tensor& piece,
           const std::vector<Destination>& destinations) {
  const auto end_of = [](const Destination& one) { return one.at + one.bytes; };
  const auto* const data =
      piece.is_cpu() ? static_cast<const char*>(piece.const_data_ptr()) : nullptr;
  for (auto one = std::ranges::upper_bound(destinations, range.begin, {}, end_of);
       one != destinations.end() && one->at < range.end; ++one) {
    if (data && one->device.is_cpu()) {
      const std::uint64_t begin = std::max(range.begin, one->at);
      const std::uint64_t end = std::min(range.end, one->at + one->bytes);
      if (begin < end)
        std::memcpy(static_cast<char*>(one->memory) + (begin - one->at),
                    data + (begin - range.begin), end - begin);
      continue;
    }
    with_common(range, piece, *one,
                [](const torch::Tensor& part, torch::Tensor memory) { memory.copy_(part); });
  }
}

// Returns whether the outline that this rank has read has the bytes that are read now.
bool is_as_outlined(const FileRange& range, const torch::Tensor& piece,
                    const FileOutline& outline) {
  if (!outline.has_read(range.begin, range.end)) return true;
  const torch::Tensor bytes = piece.cpu();
  return outline.agrees_with(range.begin, {static_cast<const char*>(bytes.const_data_ptr()),
                                           static_cast<std::size_t>(range.bytes())});
}

// Returns the exception that is being handled. It is never taken for damage.
Error failure_in_flight() {
  Error failure = error_in_flight(kRestoring);
  if (is_passed_over(failure)) failure.kind = ErrorKind::kSystem;
  return failure;
}

}  // namespace

std::optional<Damage> agree_on_damage(ProcessGroup& group, const std::optional<Error>& failure,
                                      Timeout timeout) {
  json own{{"damage", nullptr}, {"gone", false}, {"failure", nullptr}};
  if (failure && is_passed_over(*failure)) {
    own["damage"] = failure->message();
    own["gone"] = failure->kind == ErrorKind::kNotFound;
  } else if (failure) {
    own["failure"] = to_json_report(to_dist_error(*failure));
  }
  const LongWait for_the_others(group);
  const std::vector<json> all = group.all_gather_object(own, timeout);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    throw_reported(all[rank].at("failure"), concat(kRestoring, ": rank ", rank, ": "));
  for (const bool gone : {true, false})
    for (const json& one : all)
      if (!one.at("damage").is_null() && one.at("gone") == gone)
        return Damage{one.at("damage").get<std::string>(), gone};
  return std::nullopt;
}

std::optional<Damage> verify_together(ProcessGroup& group, const CheckpointDirectory& directory,
                                      const CheckpointManifest& manifest, Timeout timeout) {
  const ReadingPlan plan = agree_on_reading(group, {}, {}, timeout);
  const auto pieces = pieces_by_rank(manifest, group.size(), plan.readers, kPieceBytes);
  std::optional<RankReaders> readers;
  (void)on_every_rank(group, kRestoring, timeout, [&]() -> json {
    readers.emplace(directory, manifest, pieces[static_cast<std::size_t>(group.rank())]);
    return nullptr;
  });
  while (readers->next()) group.report_activity();
  return agree_on_damage(group, readers->failure(), timeout);
}

std::optional<Damage> read_together(ProcessGroup& group, const CheckpointDirectory& directory,
                                    const CheckpointManifest& manifest,
                                    const std::vector<FileOutline>& outlines,
                                    const std::vector<std::vector<Destination>>& destinations,
                                    Timeout timeout) {
  const std::uint64_t piece_bytes = piece_bytes_for(group.size());
  const ReadingPlan plan = agree_on_reading(group, outlines, destinations, timeout);
  const auto pieces = pieces_by_rank(manifest, group.size(), plan.readers, piece_bytes);
  std::vector<int> reading_ranks;
  std::size_t rounds = 0;
  for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
    if (!pieces[rank].empty()) reading_ranks.push_back(static_cast<int>(rank));
    rounds = std::max(rounds, pieces[rank].size());
  }
  std::optional<Exchange> exchange;
  std::optional<RankReaders> readers;
  (void)on_every_rank(group, kRestoring, timeout, [&]() -> json {
    exchange.emplace(group, reading_ranks, plan.layout, std::min(piece_bytes, largest(pieces)),
                     timeout);
    readers.emplace(directory, manifest, pieces[static_cast<std::size_t>(group.rank())],
                    plan.layout, exchange->room());
    return nullptr;
  });
  std::optional<Error> failure;
  // The other ranks learn an exception of this rank in the next round.
  const auto keep_failure = [&](auto&& part) {
    try {
      part();
    } catch (...) {
      if (!failure) failure = failure_in_flight();
    }
  };
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::optional<PieceReader::Piece> own = readers->next();
    if (!failure) failure = readers->failure();
    keep_failure([&] { exchange->put(own); });
    std::vector<FileRange> of_round;
    for (const std::vector<ReadPiece>& of_rank : pieces)
      of_round.push_back(round < of_rank.size() ? of_rank[round].range : FileRange{});
    if (exchange->run(of_round, failure.has_value())) break;
    keep_failure([&] {
      for (const int rank : reading_ranks)
        for (const PiecePart& part : exchange->parts_of(rank)) {
          const FileRange& range = part.range;
          if (range.bytes() == 0) continue;
          const torch::Tensor bytes = exchange->bytes_of(part);
          if (part.is_in_buffer) place(range, bytes, destinations[range.file]);
          if (!failure && !outlines.empty() && !is_as_outlined(range, bytes, outlines[range.file]))
            failure = wrong_digest(directory.path_of(manifest.files[range.file].name));
        }
    });
    group.report_activity();
  }
  (void)readers->next();  // waits for the digests of the last pieces
  if (!failure) failure = readers->failure();
  return agree_on_damage(group, failure, timeout);
}

}  // namespace ddprun
