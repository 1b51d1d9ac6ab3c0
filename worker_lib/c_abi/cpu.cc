#include "worker_lib/c_abi/cpu.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/task_queue.h"
#include "base/worker_env.h"
#include "rendezvous/net/local_address.h"
#include "rendezvous/net/tcp_address.h"
#include "worker_lib/c_abi/callback_store.h"
#include "worker_lib/c_abi/recorder.h"
#include "worker_lib/collective/group_end.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_kernels/reduce_kernels.h"

namespace ddprun {
namespace {

// Limit for the calls that are still in progress when the grace of a close is over.
constexpr std::chrono::seconds kMostAfterGrace{1};

thread_local std::string last_error;

int fail(int status, std::string text) {
  last_error = std::move(text);
  return status;
}

int status_of(const Error& error) { return static_cast<int>(error.kind) + 1; }

static_assert(static_cast<int>(ErrorKind::kInvalidArgument) + 1 == DDPRUN_CPU_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorKind::kTimeout) + 1 == DDPRUN_CPU_TIMEOUT);
static_assert(static_cast<int>(ErrorKind::kPeerLost) + 1 == DDPRUN_CPU_PEER_LOST);
static_assert(static_cast<int>(ErrorKind::kStopped) + 1 == DDPRUN_CPU_STOPPED);
static_assert(static_cast<int>(ErrorKind::kSystem) + 1 == DDPRUN_CPU_SYSTEM);

// Returns body(), or success for a body without a result.
template <class Body>
int status_after(const Body& body) {
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    return DDPRUN_CPU_OK;
  } else {
    return body();
  }
}

// Returns status_after(body), or a status if it throws: no exception may reach C.
template <class Body>
int guarded(const Body& body) {
  try {
    return status_after(body);
  } catch (const std::exception& thrown) {
    return fail(DDPRUN_CPU_RESOURCE, thrown.what());
  }
}

// The result of a call in flight. The caller and the thread that carries the call out share it.
class CallState {
 public:
  CallState() = default;
  CallState(const CallState&) = delete;
  CallState& operator=(const CallState&) = delete;
  // Ends the record of a call that was never carried out.
  ~CallState() { record_.end(/*failed=*/true); }

  // The record ends with the call. Called before the call is handed on.
  void record(FlightTicket ticket) { record_ = std::move(ticket); }

  void complete(std::optional<Error> error, int source = -1) {
    record_.end(error.has_value());
    {
      const std::lock_guard lock(mutex_);
      error_ = std::move(error);
      source_ = source;
      has_ended_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }

  int wait(Duration timeout) {
    if (!has_ended()) {
      if (timeout <= Duration::zero()) return DDPRUN_CPU_PENDING;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::min(timeout, kLongestTimeout), [this] { return has_ended(); });
      if (!has_ended()) return DDPRUN_CPU_PENDING;
    }
    return error_ ? fail(status_of(*error_), error_->message()) : DDPRUN_CPU_OK;
  }

  int source() const { return has_ended() ? source_ : -1; }

 private:
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

  FlightTicket record_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> has_ended_ = false;  // the members below do not change any more
  std::optional<Error> error_;
  int source_ = -1;
};

}  // namespace
}  // namespace ddprun

struct ddprun_cpu_group {
  ddprun_cpu_group(std::unique_ptr<ddprun::CpuGroup> formed,
                   std::shared_ptr<ddprun::WorkerReporter> reports_to)
      : engine(std::move(formed)), reporter(std::move(reports_to)) {}

  std::unique_ptr<ddprun::CpuGroup> engine;  // null: closed
  const std::shared_ptr<ddprun::WorkerReporter> reporter;
  std::mutex mutex;  // guards what follows; never held during a call
  std::condition_variable changed;
  bool is_closing = false;
  int users = 0;           // threads that use the engine, and collectives in the queue
  int collectives = 0;     // issued and not ended, inline or in the queue
  bool is_inline = false;  // a collective runs on its caller's thread; the queue waits for it
  ddprun::CallRecorder recorder;
  // Has room for every call: issuing one never waits.
  ddprun::TaskQueue queue{"ddprun-cpu", std::numeric_limits<std::size_t>::max()};
};

struct ddprun_cpu_call {
  std::shared_ptr<ddprun::CallState> state;
};

namespace ddprun {
namespace {

using Inputs = std::vector<ReadableBytes>;
using Outputs = std::vector<WritableBytes>;

// Run: a collective that is carried out now.
struct Run {
  CpuGroup& engine;
  ReadableList inputs;
  WritableList outputs;
  Duration timeout;

  // Return the options of a collective that only moves data, or that reduces it.
  CpuCallOptions moving(int type) const {
    CpuCallOptions options(timeout);
    options.type = static_cast<ElementType>(type);
    return options;
  }
  CpuCallOptions reducing(int op) const {
    CpuCallOptions options(timeout);
    options.asked = static_cast<ReduceOp>(op);
    return options;
  }
};
using Body = std::function<Result<void>(const Run& run)>;

Inputs inputs_of(const ddprun_cpu_buffer* buffers, std::size_t count) {
  Inputs list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    list.emplace_back(static_cast<const char*>(buffers[i].data), buffers[i].bytes);
  }
  return list;
}

Outputs outputs_of(const ddprun_cpu_buffer* buffers, std::size_t count) {
  Outputs list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    list.emplace_back(static_cast<char*>(buffers[i].data), buffers[i].bytes);
  }
  return list;
}

template <class Buffers>
std::size_t bytes_of(const Buffers& buffers) {
  std::size_t bytes = 0;
  for (const auto& one : buffers) bytes += one.size();
  return bytes;
}

// Returns what the record of a call says. `op` is none if it is negative.
FlightEntry facts_of(FlightCall call, std::size_t bytes, int type, int op = -1, int root = -1) {
  FlightEntry facts{.bytes = bytes, .peer = root, .call = call};
  facts.dtype = flight_type_of(static_cast<ElementType>(type));
  facts.op = static_cast<FlightOp>(op + 1);
  return facts;
}

// Checks what the engine requires. Its first complaint is kept.
class Check {
 public:
  Check(const ddprun_cpu_group& group, const char* name)
      : size_(group.engine->size()), rank_(group.engine->rank()), name_(name) {}

  Check& type(int type) {
    bytes_ = type < 0 || type > 255 ? 0 : size_of(static_cast<ElementType>(type));
    return require(bytes_ > 0, [&] { return concat("unknown element type ", type); });
  }
  Check& reduction(int element, int op) {
    type(element);
    return require(bytes_ > 0 && op >= 0 && op <= static_cast<int>(ReduceOp::kBitXor) &&
                       reduce_kernel(static_cast<ElementType>(element), static_cast<ReduceOp>(op),
                                     ReduceForm::kWhole, InstructionSet::kBaseline) != nullptr,
                   [&] {
                     return concat("elements of type ", to_text(static_cast<ElementType>(element)),
                                   " have no operation ", to_text(static_cast<ReduceOp>(op)));
                   });
  }
  Check& root(int root) {
    return require(root >= 0 && root < size_, [&] {
      return concat("root: invalid value ", root, " (expected 0 to ", size_ - 1, ")");
    });
  }
  Check& partner(int partner) {
    return require(partner >= 0 && partner < size_ && partner != rank_, [&] {
      return concat("rank: invalid value ", partner, " (expected another rank, 0 to ", size_ - 1,
                    ")");
    });
  }
  template <class Buffers>
  Check& whole_elements(const Buffers& buffers) {
    for (const auto& one : buffers) {
      require(bytes_ > 0 && one.size() % bytes_ == 0, [&] {
        return concat("buffer: invalid size of ", one.size(), " bytes (expected whole elements)");
      });
    }
    return *this;
  }
  // Requires that `all` is, for each rank, a list of the sizes of `one`.
  template <class One, class All>
  Check& one_list_per_rank(const One& one, const All& all) {
    require(all.size() == one.size() * size_, [&] { return "there is not one list per rank"; });
    for (std::size_t i = 0; problem_.empty() && i < all.size(); ++i) {
      require(all[i].size() == one[i % one.size()].size(), [&] {
        return concat("buffers differ in size: ", all[i].size(), " and ",
                      one[i % one.size()].size(), " bytes");
      });
    }
    return *this;
  }

  bool failed() const { return !problem_.empty(); }
  int report() const { return fail(DDPRUN_CPU_INVALID_ARGUMENT, concat(name_, ": ", problem_)); }

 private:
  template <class Text>
  Check& require(bool is_met, const Text& text) {
    if (!is_met && problem_.empty()) problem_ = text();
    return *this;
  }

  const int size_;
  const int rank_;
  const char* const name_;
  std::size_t bytes_ = 0;  // of an element
  std::string problem_;
};

// GroupUse: keeps the engine of a group while it exists, unless the group is closed.
class GroupUse {
 public:
  explicit GroupUse(ddprun_cpu_group& group) : group_(group) {
    const std::lock_guard lock(group.mutex);
    if (group.is_closing) return;
    ++group.users;
    holds_ = true;
  }
  ~GroupUse() { release(); }
  GroupUse(const GroupUse&) = delete;
  GroupUse& operator=(const GroupUse&) = delete;

  explicit operator bool() const { return holds_; }
  void release() {
    if (!std::exchange(holds_, false)) return;
    const std::lock_guard lock(group_.mutex);
    --group_.users;
    group_.changed.notify_all();
  }

 private:
  ddprun_cpu_group& group_;
  bool holds_ = false;
};

// Ends the group on all ranks: this rank did not carry out a call.
void end_group(CpuGroup& engine, const std::string& cause) {
  try {
    engine.fail(ErrorKind::kResource, -1, concat("rank ", engine.rank(), ": ", cause));
  } catch (const std::exception&) {  // out of memory; the others wait for their timeout
  }
}

// Returns function(use), or a status: no exception may reach C. One that leaves
// the function ends the group.
template <class Function>
int within(ddprun_cpu_group* group, const Function& function) {
  return guarded([&] {
    GroupUse use(*group);
    if (!use) return fail(DDPRUN_CPU_STOPPED, kGroupDestroyed);
    try {
      return status_after([&] { return function(use); });
    } catch (const std::exception& thrown) {
      if (use) end_group(*group->engine, thrown.what());
      throw;
    }
  });
}

std::optional<Error> carry_out(const Body& body, const Run& run) {
  try {
    const Result<void> done = body(run);
    return done ? std::nullopt : std::optional(done.error());
  } catch (const std::exception& thrown) {
    end_group(run.engine, thrown.what());
    return Error{
        .kind = ErrorKind::kResource, .doing = "carry out a collective", .cause = thrown.what()};
  }
}

// Puts a collective into the queue. REQUIRES: group.mutex is locked.
std::shared_ptr<CallState> submit(ddprun_cpu_group& group, Body body, Inputs inputs,
                                  Outputs outputs, const Deadline& deadline,
                                  const FlightEntry& facts) {
  auto state = std::make_shared<CallState>();
  state->record(group.recorder.begin(facts));
  if (const Result<void> started = group.queue.start(); !started) {
    end_group(*group.engine, started.error().message());
    state->complete(started.error());
    return state;
  }
  group.queue.post([&group, state, deadline, body = std::move(body), inputs = std::move(inputs),
                    outputs = std::move(outputs)]() mutable {
    {
      std::unique_lock lock(group.mutex);
      group.changed.wait(lock, [&] { return !group.is_inline; });
    }
    std::optional<Error> error =
        carry_out(body, {*group.engine, inputs, outputs, deadline.remaining()});
    {
      const std::lock_guard lock(group.mutex);
      --group.collectives;
      --group.users;
    }
    group.changed.notify_all();
    state->complete(std::move(error));
  });
  ++group.collectives;
  ++group.users;
  return state;
}

// Issues a collective. A blocking one runs on the calling thread, unless others are in flight:
// this saves two context switches.
int issue(ddprun_cpu_group* group, const Check& check, const FlightEntry& facts,
          std::int64_t timeout_ns, ddprun_cpu_call** call, Inputs inputs, Outputs outputs,
          const Body& body) {
  if (check.failed()) return check.report();
  const Deadline deadline{std::chrono::nanoseconds(timeout_ns)};
  auto handle = call ? std::make_unique<ddprun_cpu_call>() : nullptr;
  std::shared_ptr<CallState> state;
  FlightTicket record;
  {
    const std::lock_guard lock(group->mutex);
    if (call || group->collectives > 0) {
      state = submit(*group, body, std::move(inputs), std::move(outputs), deadline, facts);
    } else {
      record = group->recorder.begin(facts);
      ++group->collectives;
      group->is_inline = true;
    }
  }
  if (call) {
    handle->state = std::move(state);
    *call = handle.release();
    return DDPRUN_CPU_OK;
  }
  if (state) return state->wait(kLongestTimeout);  // the call ends by its own deadline
  const std::optional<Error> error =
      carry_out(body, {*group->engine, inputs, outputs, deadline.allowed()});
  record.end(error.has_value());
  {
    const std::lock_guard lock(group->mutex);
    --group->collectives;
    group->is_inline = false;
  }
  group->changed.notify_all();
  return error ? fail(status_of(*error), error->message()) : DDPRUN_CPU_OK;
}

// Issues a message; start(done) hands it to the engine.
template <class Start>
int issue_message(ddprun_cpu_group* group, GroupUse& use, const Check& check,
                  const FlightEntry& facts, ddprun_cpu_call** call, const Start& start) {
  if (check.failed()) return check.report();
  const auto state = std::make_shared<CallState>();
  auto handle = std::make_unique<ddprun_cpu_call>();
  handle->state = state;
  {
    const std::lock_guard lock(group->mutex);
    state->record(group->recorder.begin(facts));
  }
  start([state](const Result<Rank>& partner) {
    if (partner) {
      state->complete({}, partner->value);
    } else {
      state->complete(partner.error());
    }
  });
  if (!call) {
    use.release();  // the end of the group ends the message
    return state->wait(kLongestTimeout);
  }
  *call = handle.release();
  return DDPRUN_CPU_OK;
}

}  // namespace
}  // namespace ddprun

using namespace ddprun;  // NOLINT: the functions below are the ABI of this library

int ddprun_cpu_abi_version(void) { return DDPRUN_CPU_ABI_VERSION; }

const char* ddprun_cpu_last_error(void) { return last_error.c_str(); }

int ddprun_cpu_answer(void* answer, const void* bytes, size_t size) {
  return guarded(
      [&] { static_cast<std::string*>(answer)->assign(static_cast<const char*>(bytes), size); });
}

ddprun_cpu_group* ddprun_cpu_form(ddprun_cpu_store store, int rank, int size, const char* name,
                                  const char* title, const char* address, int64_t timeout_ns) {
  ddprun_cpu_group* group = nullptr;
  guarded([&] {
    const WorkerEnv env = launcher_environment(Rank(rank));
    std::shared_ptr<WorkerReporter> reporter = reporter_of_process(Rank(rank));
    CallbackStore callbacks(store);
    const std::string own =
        *address != '\0' ? address : likely_local_address(interface_addresses());
    Result<std::unique_ptr<CpuGroup>> formed =
        CpuGroup::form(callbacks, {.rank = Rank(rank),
                                   .world_size = size,
                                   .node_id = "node " + to_text(env.node_rank),
                                   .name = name,
                                   .title = title,
                                   .page = reporter->place(),
                                   .address = own,
                                   .ports = env.ports,
                                   .node_silence = env.lease,
                                   .timeout = std::chrono::nanoseconds(timeout_ns)});
    if (!formed) return fail(status_of(formed.error()), formed.error().message());
    group = new ddprun_cpu_group(std::move(*formed), std::move(reporter));
    return static_cast<int>(DDPRUN_CPU_OK);
  });
  return group;
}

int ddprun_cpu_record(ddprun_cpu_group* group, uint64_t id, const char* name,
                      const int* world_ranks) {
  return within(group, [&](GroupUse&) {
    const std::lock_guard lock(group->mutex);
    group->recorder.start(group->reporter, id, name,
                          {world_ranks, world_ranks + group->engine->size()});
  });
}

int ddprun_cpu_close(ddprun_cpu_group* group, int64_t grace_ns) {
  return guarded([&] {
    const Deadline grace{std::chrono::nanoseconds(grace_ns)};
    std::unique_lock lock(group->mutex);
    if (std::exchange(group->is_closing, true)) {
      group->changed.wait(lock, [&] { return !group->engine; });
      return;
    }
    const auto has_ended = [&] { return group->collectives == 0; };
    const bool is_idle = group->changed.wait_for(lock, grace.remaining(), has_ended);
    lock.unlock();
    if (is_idle) {
      group->engine->await_messages(grace.remaining());
    } else {
      group->engine->abort(kGroupDestroyed);
    }
    lock.lock();
    const auto is_unused = [&] { return group->users == 0; };
    if (!group->changed.wait_for(lock, kMostAfterGrace, is_unused)) {
      // A call was issued between the two waits.
      lock.unlock();
      group->engine->abort(kGroupDestroyed);
      lock.lock();
      group->changed.wait(lock, is_unused);
    }
    const std::unique_ptr<CpuGroup> ended = std::move(group->engine);
    group->changed.notify_all();
    lock.unlock();
  });
}

void ddprun_cpu_free(ddprun_cpu_group* group) {
  if (!group) return;
  ddprun_cpu_close(group, 0);
  delete group;
}

void ddprun_cpu_leave_to_parent(ddprun_cpu_group* group) {
  guarded([&] {
    // Without the mutex: a thread of the parent may have held it at the fork.
    if (group->engine) group->engine->leave_to_parent();
  });
}

int ddprun_cpu_abort(ddprun_cpu_group* group, const char* reason) {
  return within(group, [&](GroupUse&) { group->engine->abort(reason); });
}

int ddprun_cpu_all_reduce(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffers, size_t count,
                          int type, int op, int64_t timeout_ns, ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    Outputs outputs = outputs_of(buffers, count);
    const Check check = Check(*group, "all_reduce").reduction(type, op).whole_elements(outputs);
    const FlightEntry facts = facts_of(FlightCall::kAllReduce, bytes_of(outputs), type, op);
    return issue(group, check, facts, timeout_ns, call, {}, std::move(outputs),
                 [=](const Run& run) {
                   return run.engine.all_reduce(run.outputs, static_cast<ElementType>(type),
                                                static_cast<ReduceOp>(op), run.reducing(op));
                 });
  });
}

int ddprun_cpu_reduce(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffers, size_t count,
                      int type, int op, int root, int64_t timeout_ns, ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    Outputs outputs = outputs_of(buffers, count);
    const Check check =
        Check(*group, "reduce").reduction(type, op).root(root).whole_elements(outputs);
    const FlightEntry facts = facts_of(FlightCall::kReduce, bytes_of(outputs), type, op, root);
    return issue(
        group, check, facts, timeout_ns, call, {}, std::move(outputs), [=](const Run& run) {
          return run.engine.reduce(run.outputs, static_cast<ElementType>(type),
                                   static_cast<ReduceOp>(op), Rank(root), run.reducing(op));
        });
  });
}

int ddprun_cpu_broadcast(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffers, size_t count,
                         int type, int root, int64_t timeout_ns, ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    Outputs outputs = outputs_of(buffers, count);
    const Check check = Check(*group, "broadcast").type(type).root(root).whole_elements(outputs);
    const FlightEntry facts = facts_of(FlightCall::kBroadcast, bytes_of(outputs), type, -1, root);
    return issue(group, check, facts, timeout_ns, call, {}, std::move(outputs),
                 [=](const Run& run) {
                   return run.engine.broadcast(run.outputs, Rank(root), run.moving(type));
                 });
  });
}

int ddprun_cpu_all_gather(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs, size_t count,
                          const ddprun_cpu_buffer* outputs, int type, int64_t timeout_ns,
                          ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    Inputs from = inputs_of(inputs, count);
    Outputs to = outputs_of(outputs, count * group->engine->size());
    const Check check =
        Check(*group, "all_gather").type(type).whole_elements(from).one_list_per_rank(from, to);
    const FlightEntry facts = facts_of(FlightCall::kAllGather, bytes_of(from), type);
    return issue(group, check, facts, timeout_ns, call, std::move(from), std::move(to),
                 [=](const Run& run) {
                   return run.engine.all_gather(run.inputs, run.outputs, run.moving(type));
                 });
  });
}

int ddprun_cpu_reduce_scatter(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs,
                              const ddprun_cpu_buffer* outputs, size_t count, int type, int op,
                              int64_t timeout_ns, ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    Inputs from = inputs_of(inputs, count * group->engine->size());
    Outputs to = outputs_of(outputs, count);
    const Check check = Check(*group, "reduce_scatter")
                            .reduction(type, op)
                            .whole_elements(to)
                            .one_list_per_rank(to, from);
    const FlightEntry facts = facts_of(FlightCall::kReduceScatter, bytes_of(to), type, op);
    return issue(
        group, check, facts, timeout_ns, call, std::move(from), std::move(to), [=](const Run& run) {
          return run.engine.reduce_scatter(run.inputs, run.outputs, static_cast<ElementType>(type),
                                           static_cast<ReduceOp>(op), run.reducing(op));
        });
  });
}

int ddprun_cpu_gather(ddprun_cpu_group* group, const ddprun_cpu_buffer* input,
                      const ddprun_cpu_buffer* outputs, int type, int root, int64_t timeout_ns,
                      ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    const bool is_root = group->engine->rank() == root;
    Inputs from = inputs_of(input, 1);
    Outputs to = outputs_of(outputs, is_root ? group->engine->size() : 0);
    Check check(*group, "gather");
    check.type(type).root(root).whole_elements(from);
    if (is_root) check.one_list_per_rank(from, to);
    const FlightEntry facts = facts_of(FlightCall::kGather, bytes_of(from), type, -1, root);
    return issue(
        group, check, facts, timeout_ns, call, std::move(from), std::move(to), [=](const Run& run) {
          return run.engine.gather(run.inputs[0], run.outputs, Rank(root), run.moving(type));
        });
  });
}

int ddprun_cpu_scatter(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs,
                       const ddprun_cpu_buffer* output, int type, int root, int64_t timeout_ns,
                       ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    const bool is_root = group->engine->rank() == root;
    Inputs from = inputs_of(inputs, is_root ? group->engine->size() : 0);
    Outputs to = outputs_of(output, 1);
    Check check(*group, "scatter");
    check.type(type).root(root).whole_elements(to);
    if (is_root) check.one_list_per_rank(to, from);
    const FlightEntry facts = facts_of(FlightCall::kScatter, bytes_of(to), type, -1, root);
    return issue(
        group, check, facts, timeout_ns, call, std::move(from), std::move(to), [=](const Run& run) {
          return run.engine.scatter(run.inputs, run.outputs[0], Rank(root), run.moving(type));
        });
  });
}

int ddprun_cpu_all_to_all(ddprun_cpu_group* group, const ddprun_cpu_buffer* inputs,
                          const ddprun_cpu_buffer* outputs, int type, int64_t timeout_ns,
                          ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    Inputs from = inputs_of(inputs, group->engine->size());
    Outputs to = outputs_of(outputs, group->engine->size());
    const Check check =
        Check(*group, "all_to_all").type(type).whole_elements(from).whole_elements(to);
    const FlightEntry facts = facts_of(FlightCall::kAllToAll, bytes_of(from), type);
    return issue(group, check, facts, timeout_ns, call, std::move(from), std::move(to),
                 [=](const Run& run) {
                   return run.engine.all_to_all(run.inputs, run.outputs, run.moving(type));
                 });
  });
}

int ddprun_cpu_barrier(ddprun_cpu_group* group, int64_t timeout_ns, ddprun_cpu_call** call) {
  return within(group, [&](GroupUse&) {
    const FlightEntry facts{.call = FlightCall::kBarrier};
    return issue(group, Check(*group, "barrier"), facts, timeout_ns, call, {}, {},
                 [](const Run& run) { return run.engine.barrier(run.timeout); });
  });
}

int ddprun_cpu_send(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffer, int destination,
                    int tag, int64_t timeout_ns, ddprun_cpu_call** call) {
  return within(group, [&](GroupUse& use) {
    const Check check = Check(*group, "send").partner(destination);
    const FlightEntry facts{
        .bytes = buffer->bytes, .peer = destination, .call = FlightCall::kSend, .tag = tag};
    return issue_message(group, use, check, facts, call, [&](TransferDone done) {
      group->engine->start_send(buffer->data, buffer->bytes, Rank(destination), tag,
                                std::chrono::nanoseconds(timeout_ns), std::move(done));
    });
  });
}

int ddprun_cpu_recv(ddprun_cpu_group* group, const ddprun_cpu_buffer* buffer, int source, int tag,
                    int64_t timeout_ns, ddprun_cpu_call** call) {
  return within(group, [&](GroupUse& use) {
    Check check(*group, "recv");
    // In a group of one there is no other rank to receive from.
    if (source != -1 || group->engine->size() == 1) check.partner(source);
    const std::optional<Rank> from = source == -1 ? std::nullopt : std::optional(Rank(source));
    const FlightEntry facts{
        .bytes = buffer->bytes, .peer = source, .call = FlightCall::kRecv, .tag = tag};
    return issue_message(group, use, check, facts, call, [&](TransferDone done) {
      group->engine->start_recv(buffer->data, buffer->bytes, from, tag,
                                std::chrono::nanoseconds(timeout_ns), std::move(done));
    });
  });
}

int ddprun_cpu_call_wait(ddprun_cpu_call* call, int64_t timeout_ns) {
  return guarded([&] { return call->state->wait(std::chrono::nanoseconds(timeout_ns)); });
}

int ddprun_cpu_call_source(ddprun_cpu_call* call) { return call->state->source(); }

void ddprun_cpu_call_free(ddprun_cpu_call* call) { delete call; }

int ddprun_cpu_flight_group(uint64_t id, const char* name, const int* world_ranks, size_t size) {
  return guarded([&] { reporter_of_process()->register_group(id, name, {world_ranks, size}); });
}

uint64_t ddprun_cpu_flight_begin(uint64_t group, uint64_t collective, int call, int type,
                                 uint64_t bytes, int peer, int64_t age_ns) {
  uint64_t number = 0;
  guarded([&] {
    FlightEntry facts{.begun_ns = to_page_time(BootClock::now()) - age_ns,
                      .collective = collective,
                      .bytes = bytes,
                      .group = group,
                      .peer = peer};
    facts.call = static_cast<FlightCall>(call);
    facts.dtype = static_cast<FlightType>(type);
    number = reporter_of_process()->begin_call(facts);
  });
  return number;
}

void ddprun_cpu_flight_end(uint64_t number) {
  guarded([&] {
    if (number != 0) reporter_of_process()->end_call(number, /*failed=*/false);
  });
}
