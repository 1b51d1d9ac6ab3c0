#include "worker_lib/checkpoint/shared_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/concat.h"
#include "base/file_calls.h"
#include "base/random_id.h"
#include "base/read_all.h"
#include "base/seconds.h"
#include "base/task_queue.h"
#include "worker_lib/checkpoint/core/file_plan.h"
#include "worker_lib/checkpoint/gather.h"
#include "worker_lib/checkpoint/manifest_text.h"
#include "worker_lib/group/every_rank.h"
#include "worker_lib/serialization/checkpoint_state.h"
#include "worker_lib/serialization/core/temporary_name.h"
#include "worker_lib/serialization/file_digest.h"
#include "worker_lib/serialization/file_stream.h"
#include "worker_lib/serialization/value_pickler.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr std::size_t kSentBytes = 4 << 20;  // of a message to rank 0
constexpr std::size_t kEndBytes = 4096;      // of each part's begin and end, that are read again
constexpr int kRounds = 4;                   // in which ranks wait for a disk that does nothing

json to_binary(const std::string& bytes) { return json::binary({bytes.begin(), bytes.end()}); }
std::string from_binary(const json& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

class TogetherWriter {
 public:
  TogetherWriter(ProcessGroup& group, CheckpointDirectory& directory, const c10::IValue& shard,
                 const SharedWrite& options)
      : group_(group),
        rank_(static_cast<std::size_t>(group.rank())),
        directory_(directory),
        shard_(shard),
        options_(options) {}
  ~TogetherWriter() {
    finishing_.join();
    writing_.join();
    if (!temporary_.empty() && rank_ == 0) file_calls().unlink(temporary_.c_str());
  }
  TogetherWriter(const TogetherWriter&) = delete;
  TogetherWriter& operator=(const TogetherWriter&) = delete;

  WrittenFile run() {
    make_plan();
    const std::vector<json> sends = exchange([&]() -> json {
      if (has_part()) open_part();
      return has_part() && !stream_;
    });
    keep_failure([&] { write_part(); });
    is_digested_ = digest_parts();
    finish_parts();
    for (std::size_t rank = 0; rank < sends.size() && is_digested_; ++rank)
      if (sends[rank].get<bool>()) send_part(rank);
    const std::vector<json> ends = exchange([&]() -> json {
      if (failure_) throw *failure_;
      if (stream_ && stream_->failure()) throw to_dist_error(*stream_->failure());
      return {{"head", to_binary(head_)}, {"tail", to_binary(tail_)}};
    });
    (void)exchange([&]() -> json {
      if (rank_ != 0) return nullptr;
      expect_parts(ends);
      value_or_throw(directory_.rename_data(temporary_, options_.name));
      temporary_.clear();
      return nullptr;
    });
    return written_;
  }

 private:
  // Returns the results of all ranks, or throws the first failure on all of them. It is not
  // on_every_rank(), which would hide a hang of the training that goes on meanwhile.
  std::vector<json> exchange(const std::function<json()>& part) {
    json own{{"failure", nullptr}, {"value", nullptr}};
    try {
      with_dist_errors(kSaving, [&] { own["value"] = part(); });
    } catch (const DistError& failure) {
      own["failure"] = to_json_report(failure);
    }
    std::vector<json> values;
    for (json& one : group_.all_gather_object(own, options_.timeout)) {
      throw_reported(one.at("failure"), values.empty() ? "" : concat("rank ", values.size(), ": "));
      values.push_back(std::move(one.at("value")));
    }
    return values;
  }

  // Runs something between the exchanges. Its failure waits for the next exchange, because the
  // other ranks would wait for a rank that leaves.
  void keep_failure(const std::function<void()>& part) {
    try {
      with_dist_errors(kSaving, part);
    } catch (const DistError& failure) {
      if (!failure_) failure_ = failure;
    }
  }

  bool has_part() const { return plan_.parts[rank_].bytes() > 0; }
  std::string_view storage(std::size_t number) const {
    return bytes_of_storage(pickled_.tensors.at(number));
  }

  void make_plan() {
    const std::vector<json> shards = exchange([&]() -> json {
      pickled_ = pickle_of(shard_);
      json own{{"pickle", to_binary(pickled_.pickle)}, {"temporary", nullptr}};
      if (rank_ == 0) own["temporary"] = make_file();
      return own;
    });
    (void)exchange([&]() -> json {
      std::vector<std::string> pickles;
      for (const json& one : shards) pickles.push_back(from_binary(one.at("pickle")));
      plan_ = value_or_throw(plan_file(pickles));
      const std::string name = shards[0].at("temporary");
      temporary_ = directory_.path_of(name);
      return nullptr;
    });
  }

  // Makes the file on rank 0, and returns its temporary name.
  std::string make_file() {
    const std::string name = temporary_name(options_.name, random_hex(6));
    const std::string path = directory_.path_of(name);
    fd_ = UniqueFd(uninterrupted([&] {
      return file_calls().open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }));
    if (!fd_.valid()) throw to_dist_error(system_error("write " + path, errno));
    temporary_ = path;
    return name;
  }

  UniqueFd open_file() {
    return UniqueFd(uninterrupted(
        [&] { return file_calls().open(temporary_.c_str(), O_WRONLY | O_CLOEXEC, 0); }));
  }

  // The name is random. So a file of this name is rank 0's.
  void open_part() {
    if (rank_ != 0) fd_ = open_file();
    if (fd_.valid()) open_stream(stream_, std::move(fd_), plan_.parts[rank_]);
  }

  void open_stream(std::optional<FileStream>& stream, UniqueFd fd, const FilePlan::Part& part) {
    const bool is_placed =
        fd.valid() && ::lseek(fd.get(), static_cast<off_t>(part.begin), SEEK_SET) >= 0;
    const int sys_errno = is_placed ? 0 : errno;
    stream.emplace(std::move(fd), temporary_);
    if (!is_placed) stream->fail(sys_errno);
  }

  void write_part() {
    if (!stream_) return;
    part_.emplace(plan_, rank_,
                  [this](const void* data, std::size_t bytes) { stream_->write(data, bytes); });
    writing_.begin([this] {
      try {
        part_->write_records([this](std::size_t number) { return storage(number); });
      } catch (...) {
        stream_->fail(ENOMEM);
      }
    });
  }

  // Each rank continues the digest of the rank before, and passes it on. Returns the same on every
  // rank.
  bool digest_parts() {
    json link{{"failure", nullptr},
              {"bytes", 0},
              {"state", ""},
              {"chain", ""},
              {"crcs", std::vector<std::uint32_t>(plan_.records.size())}};
    for (std::size_t rank = 0; rank < plan_.parts.size(); ++rank) {
      if (plan_.parts[rank].bytes() == 0) continue;
      if (rank == rank_ && link.at("failure").is_null()) try {
          with_dist_errors(kSaving, [&] { digest_part(link); });
        } catch (const DistError& failure) {
          link["failure"] = to_json_report(failure);
        }
      link = group_.broadcast_object(link, static_cast<int>(rank), options_.timeout);
    }
    keep_failure([&] {
      throw_reported(link.at("failure"));
      written_ = link.at("file").get<WrittenFile>();
      crcs_ = link.at("crcs").get<std::vector<std::uint32_t>>();
    });
    return link.at("failure").is_null();
  }

  void digest_part(json& link) {
    FileDigest digest(
        {.bytes = link.at("bytes"), .state = link.at("state"), .chain = link.at("chain")});
    PartWriter part(plan_, rank_, [&](const void* data, std::size_t bytes) {
      const std::string_view piece(static_cast<const char*>(data), bytes);
      head_ += piece.substr(0, kEndBytes - std::min(kEndBytes, head_.size()));
      tail_ += piece.substr(piece.size() - std::min(kEndBytes, piece.size()));
      tail_.erase(0, tail_.size() - std::min(kEndBytes, tail_.size()));
      digest.add(piece);
      options_.on_progress();
    });
    part.write_records([this](std::size_t number) { return storage(number); });
    auto crcs = link.at("crcs").get<std::vector<std::uint32_t>>();
    const std::vector<std::uint32_t> own = part.crcs();
    for (std::size_t i = 0; i < crcs.size(); ++i)
      if (plan_.records[i].rank == rank_) crcs[i] = own[i];
    if (plan_.last == rank_) {
      part.write_directory(crcs);
      link["file"] = digest.finish(options_.name);
    } else {
      const FileDigest::State state = digest.state();
      link["bytes"] = state.bytes;
      link["state"] = state.state;
      link["chain"] = state.chain;
    }
    link["crcs"] = std::move(crcs);
  }

  void finish_part() {
    writing_.join();
    if (plan_.last == rank_ && !failure_ && !stream_->failure()) part_->write_directory(crcs_);
    stream_->finish();
  }

  // Waits until all parts are on the disk. The ranks tell each other how far they are. So a slow
  // disk fails no save, but one that takes nothing for the whole timeout.
  void finish_parts() {
    if (stream_)
      finishing_.begin([this] {
        keep_failure([&] { finish_part(); });
        finished_.set_value();
      });
    else
      finished_.set_value();
    const std::future<void> finished = finished_.get_future();
    const Duration round = std::min<Duration>(options_.timeout, kLongestTimeout) / kRounds;
    std::vector<json> before(plan_.parts.size());
    std::vector<int> idle(plan_.parts.size());
    for (;;) {
      const bool is_finished = finished.wait_for(round) == std::future_status::ready;
      const std::vector<json> now = group_.all_gather_object(
          is_finished ? json() : json(stream_->progress()), options_.timeout);
      if (std::ranges::all_of(now, [](const json& one) { return one.is_null(); })) return;
      for (std::size_t rank = 0; rank < now.size(); ++rank) {
        idle[rank] = !now[rank].is_null() && now[rank] == before[rank] ? idle[rank] + 1 : 0;
        if (idle[rank] >= kRounds)
          refuse(concat(kSaving, ": rank ", rank, ": its disk has taken nothing for ",
                        in_seconds(options_.timeout), " (CheckpointOptions::disk_timeout)"),
                 DistError::Kind::kTimeout, static_cast<int>(rank));
      }
      before = now;
    }
  }

  // Sends the part of a rank to rank 0, which writes it. Collective.
  void send_part(std::size_t rank) {
    const FilePlan::Part& range = plan_.parts[rank];
    std::optional<FileStream> sent;
    if (rank_ == 0) keep_failure([&] { open_stream(sent, open_file(), range); });
    std::uint64_t left = range.bytes();
    bool is_passing = false;  // stays true if a gather fails, which then fails on all ranks
    const auto pass = [&](const std::string& bytes) {
      is_passing = true;
      const auto all = group_.gather_bytes(bytes, 0, options_.timeout);
      is_passing = false;
      left -= std::min<std::uint64_t>(left, kSentBytes);
      keep_failure([&] {
        if (sent) sent->write(all[rank].data(), all[rank].size());
        options_.on_progress();
      });
    };
    if (rank == rank_) try {
        std::string piece;
        PartWriter part(plan_, rank_, [&](const void* data, std::size_t bytes) {
          std::string_view rest(static_cast<const char*>(data), bytes);
          while (!rest.empty()) {
            const std::size_t taken = std::min(rest.size(), kSentBytes - piece.size());
            piece += rest.substr(0, taken);
            rest.remove_prefix(taken);
            if (piece.size() == kSentBytes) pass(std::exchange(piece, {}));
          }
        });
        part.write_records([this](std::size_t number) { return storage(number); });
        if (plan_.last == rank_) part.write_directory(crcs_);
        if (!piece.empty()) pass(piece);
      } catch (...) {
        if (is_passing) throw;
        keep_failure([] { throw; });
      }
    while (left > 0) pass("");
    if (!sent) return;
    keep_failure([&] {
      sent->finish();
      if (sent->failure()) throw to_dist_error(*sent->failure());
    });
  }

  // Some file systems lose what several hosts write into one file. A tensor of zeros looks like a
  // hole, but the end of a part never does: there is a record's CRC and the header of the next.
  void expect_parts(const std::vector<json>& ends) const {
    const UniqueFd fd(::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat facts {};
    if (!fd.valid() || ::fstat(fd.get(), &facts) != 0)
      throw to_dist_error(system_error("read " + temporary_, errno));
    bool is_whole = static_cast<std::uint64_t>(facts.st_size) == plan_.bytes();
    const auto has = [&](const std::string& bytes, std::uint64_t at) {
      std::string found(bytes.size(), '\0');
      const ssize_t count = pread_all(fd.get(), found.data(), found.size(), at);
      if (count < 0) throw to_dist_error(system_error("read " + temporary_, errno));
      return found == bytes;
    };
    for (std::size_t rank = 0; rank < ends.size() && is_whole; ++rank) {
      const FilePlan::Part& part = plan_.parts[rank];
      const std::string tail = from_binary(ends[rank].at("tail"));
      is_whole =
          has(from_binary(ends[rank].at("head")), part.begin) && has(tail, part.end - tail.size());
    }
    if (!is_whole)
      refuse(concat(kSaving, ": ", temporary_,
                    ": the file system lost what a rank wrote into the file; set "
                    "CheckpointOptions::write_together_from to a larger size, so that rank 0 "
                    "writes alone"),
             DistError::Kind::kSystem);
  }

  ProcessGroup& group_;
  const std::size_t rank_;
  CheckpointDirectory& directory_;
  const c10::IValue& shard_;
  const SharedWrite& options_;

  Pickled pickled_;
  FilePlan plan_;
  std::string temporary_;  // the path, until the file is renamed
  UniqueFd fd_;
  std::optional<FileStream> stream_;  // of this rank's part, if it can open the file
  std::optional<PartWriter> part_;    // that writes into the stream
  std::vector<std::uint32_t> crcs_;   // of all records
  std::string head_, tail_;           // the first and last bytes of the part
  WrittenFile written_;
  bool is_digested_ = false;          // every rank has digested its part
  std::optional<DistError> failure_;  // the finishing thread's, while it runs
  std::promise<void> finished_;
  BackgroundTask writing_{"ddprun-part"};
  BackgroundTask finishing_{"ddprun-finish"};
};

}  // namespace

WrittenFile write_together(ProcessGroup& writers, CheckpointDirectory& directory,
                           const c10::IValue& shard, const SharedWrite& options) {
  return TogetherWriter(writers, directory, shard, options).run();
}

}  // namespace ddprun
