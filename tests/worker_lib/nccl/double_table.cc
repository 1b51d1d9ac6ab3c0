// The tables of functions that replace NCCL's and CUDA's.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/worker_lib/nccl/double_memory.h"
#include "tests/worker_lib/nccl/double_state.h"
#include "tests/worker_lib/nccl/double_types.h"

namespace ddprun {

constexpr auto kInvalidHandle = static_cast<CudaResult>(400);  // cudaErrorInvalidResourceHandle

struct NcclDoubleTable {
  using Comm = NcclDouble::Comm;
  using Event = NcclDouble::Event;
  using Stream = NcclDouble::Stream;
  using Entry = NcclDouble::Entry;

  static NcclDouble& self() { return NcclDouble::self(); }

  static NcclResult get_unique_id(NcclUniqueId* id) {
    const std::lock_guard lock(self().mutex_);
    if (const auto failure = self().planned_failure("get_unique_id")) {
      return static_cast<NcclResult>(*failure);
    }
    const std::uint64_t number = ++self().ids_;
    self().cliques_[number] = std::make_unique<NcclDouble::Clique>();
    id->bytes.fill('i');
    std::memcpy(id->bytes.data(), &number, sizeof(number));
    return NcclResult::kSuccess;
  }

  static NcclResult comm_init_rank(NcclComm* comm, int size, const NcclUniqueId& id, int rank) {
    return self().init("comm_init_rank", comm, size, rank, {&id, 1});
  }

  static NcclResult comm_init_rank_scalable(NcclComm* comm, int size, int rank,
                                            const NcclUniqueId* ids, int id_count) {
    return self().init("comm_init_rank_scalable", comm, size, rank,
                       {ids, static_cast<std::size_t>(id_count)});
  }

  static NcclResult comm_get_async_error(NcclComm handle, NcclResult* state) {
    const std::lock_guard lock(self().mutex_);
    *state = self().read_state(self().at(handle, "comm_get_async_error"));
    return NcclResult::kSuccess;
  }

  static NcclResult comm_split(NcclComm handle, int color, int key, NcclComm* part) {
    return self().split(handle, color, key, part);
  }
  static NcclResult comm_revoke(NcclComm handle) { return self().revoke(handle); }
  static NcclResult comm_finalize(NcclComm handle) { return self().finalize(handle); }
  static NcclResult comm_destroy(NcclComm handle) { return self().destroy(handle); }
  static NcclResult comm_abort(NcclComm handle) { return self().abort(handle); }

  static NcclResult mem_alloc(void** memory, std::size_t bytes) {
    const std::lock_guard lock(self().mutex_);
    if (const auto failure = self().planned_failure("mem_alloc")) {
      return static_cast<NcclResult>(*failure);
    }
    if (self().capture_ && self().capture_->is_open) self().breach("mem_alloc in a capture");
    self().touch_context();
    *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    const std::lock_guard all(double_memory().mutex);
    double_memory().blocks[*memory] = bytes;
    return NcclResult::kSuccess;
  }

  static NcclResult mem_free(void* memory) {
    const std::lock_guard lock(self().mutex_);
    self().calls_.push_back("mem_free");
    const std::lock_guard all(double_memory().mutex);
    if (double_memory().blocks.erase(memory) == 0)
      self().breach("mem_free of what was not allocated");
    for (const auto& comm : self().comms_) {
      if (comm->registered.contains(memory)) self().breach("mem_free of registered memory");
    }
    std::free(memory);
    return NcclResult::kSuccess;
  }

  // ncclCommRegister: leaves no job. Registering the same memory twice is legal. If ddprun did
  // it, that would be a mistake.
  static NcclResult comm_register(NcclComm handle, void* memory, std::size_t bytes, void** known) {
    return at_once("comm_register", handle, false, [&](Comm& comm) {
      const std::lock_guard all(double_memory().mutex);
      const auto block = double_memory().blocks.find(memory);
      if (block == double_memory().blocks.end() || block->second < bytes) {
        self().breach("comm_register of memory that is not NCCL's");
      }
      if (!comm.registered.emplace(memory, memory).second) {
        self().breach("memory is registered twice");
      }
      *known = memory;
    });
  }

  // ncclCommDeregister: does not check the state, so it is legal on a communicator that has
  // failed.
  static NcclResult comm_deregister(NcclComm handle, void* known) {
    return at_once("comm_deregister", handle, false, [&](Comm& comm) {
      if (comm.registered.erase(known) == 0) self().breach("comm_deregister of what is not known");
    });
  }

  static NcclResult group_start() {
    ++NcclDouble::own_group().depth;
    const std::lock_guard lock(self().mutex_);
    self().calls_.push_back("group_start");
    return NcclResult::kSuccess;
  }

  // ncclGroupEndInternal: returns kInvalidUsage without a group.
  static NcclResult group_end() {
    NcclDouble::Lock lock(self().mutex_);
    self().calls_.push_back("group_end");
    if (NcclDouble::own_group().depth == 0) {
      self().breach("group_end without group_start");
      return NcclResult::kInvalidUsage;
    }
    if (--NcclDouble::own_group().depth > 0) return NcclResult::kSuccess;
    return self().end_group(lock);
  }

  // Runs a call that leaves nothing in progress, and leaves no error if it fails.
  static NcclResult at_once(const char* call, NcclComm handle, bool must_be_ready,
                            const std::function<void(Comm&)>& action) {
    const std::lock_guard lock(self().mutex_);
    Comm& comm = self().at(handle, call);
    if (const auto failure = self().planned_failure(call)) {
      return static_cast<NcclResult>(*failure);
    }
    const NcclResult ready = must_be_ready ? self().ensure_ready(comm, call) : NcclResult::kSuccess;
    if (ready == NcclResult::kSuccess) action(comm);
    return ready;
  }

  // ncclRedOpCreatePreMulSum: the communicator must be ready (ncclCommEnsureReady).
  static NcclResult red_op_create_premul_sum(NcclOp* op, const void* scalar, NcclType type,
                                             NcclComm handle) {
    return at_once("red_op_create_premul_sum", handle, true, [&](Comm& comm) {
      int number = static_cast<int>(NcclOp::kAvg) + 1;
      while (comm.premul_sums.contains(static_cast<NcclOp>(number))) ++number;
      *op = static_cast<NcclOp>(number);
      comm.premul_sums[*op] = view(scalar, 1, type).item<double>();
    });
  }

  // ncclRedOpDestroy: does not check the state.
  static NcclResult red_op_destroy(NcclOp op, NcclComm handle) {
    return at_once("red_op_destroy", handle, false, [&](Comm& comm) {
      if (comm.premul_sums.erase(op) == 0) self().breach("an operation was destroyed twice");
    });
  }

  static NcclResult collective(NcclComm handle, CudaStream stream, NcclDouble::Collective what) {
    const std::string kind = what.kind;  // `what` is moved from before the call is over
    return self().issue(kind, handle, [&](Comm& comm, NcclDouble::Group& group) {
      return self().add_collective(comm, group, stream, std::move(what));
    });
  }

  static NcclResult message(const char* call, NcclComm handle, CudaStream stream,
                            NcclDouble::Message what) {
    return self().issue(call, handle, [&](Comm& comm, NcclDouble::Group& group) {
      return self().add_message(comm, group, stream, std::move(what));
    });
  }

  template <class T>
  static void make(std::vector<std::unique_ptr<T>>& all, auto* handle) {
    all.push_back(std::make_unique<T>());
    all.back()->device = double_device();
    *handle = reinterpret_cast<std::remove_reference_t<decltype(*handle)>>(all.back().get());
  }

  template <class T>
  static void destroy(auto handle) {
    T& one = *reinterpret_cast<T*>(handle);
    if (one.is_destroyed) self().breach("something was destroyed twice");
    one.is_destroyed = true;
  }

  static CudaResult stream_wait_event(CudaStream stream, CudaEvent handle) {
    return self().cuda("stream_wait_event", [&] {
      auto* event = reinterpret_cast<Event*>(handle);
      if (event->is_destroyed) self().breach("wait for a destroyed event");
      auto* waiting = reinterpret_cast<Stream*>(stream);
      if (event->is_captured) return join(*waiting, *event);
      if (waiting->is_capturing) self().breach("a capture waits for an event from outside");
      waiting->entries.push_back(
          {.kind = Entry::Kind::kWait, .event = event, .version = event->recorded});
    });
  }

  // Adds a stream that waits for an event of a capture to that capture.
  static void join(Stream& waiting, Event& event) {
    NcclDouble::Capture& capture = *self().capture_;
    if (!capture.is_open) return self().breach("wait for an event of a capture that is over");
    waiting.is_capturing = true;
    const std::set<Stream*>& of = capture.of[&event];
    if (&waiting != capture.origin) capture.unjoined.insert(&waiting);
    if (&waiting == capture.origin) {
      for (Stream* joined : of) capture.unjoined.erase(joined);
    }
  }

  static CudaResult stream_is_capturing(CudaStream stream, bool* is_capturing) {
    const std::lock_guard lock(self().mutex_);
    const auto planned = self().planned_failures_.extract("stream_is_capturing");
    if (planned) return static_cast<CudaResult>(planned.mapped());
    // A tensor may outlive the double that it was made with. It names its streams when it is
    // freed.
    const auto known = std::ranges::find(self().streams_, reinterpret_cast<Stream*>(stream),
                                         &std::unique_ptr<Stream>::get);
    if (known == self().streams_.end()) return kInvalidHandle;
    *is_capturing = (*known)->is_capturing;
    return CudaResult::kSuccess;
  }

  static CudaResult event_record(CudaEvent handle, CudaStream stream_handle) {
    return self().cuda("event_record", [&] {
      auto* event = reinterpret_cast<Event*>(handle);
      auto* stream = reinterpret_cast<Stream*>(stream_handle);
      if (event->is_destroyed || stream->is_destroyed) self().breach("record of what is destroyed");
      if (event->device != stream->device) self().breach("event and stream of different devices");
      event->is_captured = stream->is_capturing;
      if (event->is_captured) {
        self().capture_->of[event] = {stream};
        return;
      }
      stream->entries.push_back(
          {.kind = Entry::Kind::kRecord, .event = event, .version = ++event->recorded});
    });
  }

  static CudaResult event_query(CudaEvent handle) {
    NcclDouble::Lock lock(self().mutex_);
    auto* event = reinterpret_cast<Event*>(handle);
    self().touch_context();
    self().changed_.wait(lock, [] { return !self().event_query_hangs_; });
    if (event->is_destroyed) self().breach("query of a destroyed event");
    if (event->is_captured) self().breach("query of an event of a capture");
    const auto planned = self().planned_failures_.extract("event_query");
    if (planned) return static_cast<CudaResult>(planned.mapped());
    self().pump();
    return event->reached == event->recorded ? CudaResult::kSuccess : CudaResult::kNotReady;
  }

  static CudaResult memcpy_async(void* to, const void* from, std::size_t bytes, CudaStream stream) {
    return self().cuda("memcpy_async", [&] {
      self().put(*reinterpret_cast<Stream*>(stream),
                 {.kind = Entry::Kind::kCopy, .copy = [=] { std::memcpy(to, from, bytes); }});
    });
  }

  // Sets the device. Since CUDA 12 this makes a context.
  static CudaResult set_device(int device) {
    double_device() = device;
    {
      NcclDouble::Lock lock(self().mutex_);
      std::array<char, 16> name{};
      ::pthread_getname_np(::pthread_self(), name.data(), name.size());
      self().changed_.wait(lock, [&] { return self().held_threads_ != name.data(); });
    }
    return self().cuda("set_device", [] {});
  }

  // c10::cuda::MaybeSetDevice: sets the device and makes no context.
  static CudaResult restore_device(int device) {
    double_device() = device;
    return CudaResult::kSuccess;
  }
};

const NcclApi& NcclDouble::api() {
  using Table = NcclDoubleTable;
  static constexpr NcclApi kTable{
      .get_unique_id = Table::get_unique_id,
      .comm_init_rank = Table::comm_init_rank,
      .comm_get_async_error = Table::comm_get_async_error,
      .comm_finalize = Table::comm_finalize,
      .comm_destroy = Table::comm_destroy,
      .comm_abort = Table::comm_abort,
      .comm_init_rank_scalable = Table::comm_init_rank_scalable,
      .comm_split = Table::comm_split,
      .comm_revoke = Table::comm_revoke,
      .get_error_string = [](NcclResult) -> const char* { return "a failure that was planned"; },
      .get_last_error = [](NcclComm) -> const char* { return ""; },
      .mem_alloc = Table::mem_alloc,
      .mem_free = Table::mem_free,
      .comm_register = Table::comm_register,
      .comm_deregister = Table::comm_deregister,
      .red_op_create_premul_sum = Table::red_op_create_premul_sum,
      .red_op_destroy = Table::red_op_destroy,
      .group_start = Table::group_start,
      .group_end = Table::group_end,
      .all_reduce =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "all_reduce",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .op = op});
          },
      .reduce =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op, int root,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "reduce",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .op = op,
                                      .root = root});
          },
      .broadcast =
          [](const void* send, void* receive, std::size_t count, NcclType type, int root,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "broadcast",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .root = root});
          },
      .all_gather =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclComm comm,
             CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "all_gather",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type});
          },
      .reduce_scatter =
          [](const void* send, void* receive, std::size_t count, NcclType type, NcclOp op,
             NcclComm comm, CudaStream stream) {
            return Table::collective(comm, stream,
                                     {.kind = "reduce_scatter",
                                      .send = send,
                                      .receive = receive,
                                      .count = count,
                                      .type = type,
                                      .op = op});
          },
      .send =
          [](const void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
             CudaStream stream) {
            const std::size_t bytes = count * torch::elementSize(torch_type(type));
            return Table::message(
                "send", comm, stream,
                {.is_send = true, .data = const_cast<void*>(data), .bytes = bytes, .peer = peer});
          },
      .recv =
          [](void* data, std::size_t count, NcclType type, int peer, NcclComm comm,
             CudaStream stream) {
            const std::size_t bytes = count * torch::elementSize(torch_type(type));
            return Table::message("recv", comm, stream,
                                  {.data = data, .bytes = bytes, .peer = peer});
          },
      .get_device_count =
          [](int* count) {
            const std::lock_guard lock(Table::self().mutex_);
            const auto failure = Table::self().planned_failure("get_device_count");
            *count = Table::self().device_count_;
            return failure ? static_cast<CudaResult>(*failure) : CudaResult::kSuccess;
          },
      .get_device =
          [](int* device) {
            *device = double_device();
            return CudaResult::kSuccess;
          },
      .set_device = Table::set_device,
      .restore_device = Table::restore_device,
      .stream_create =
          [](CudaStream* stream) {
            return Table::self().cuda("stream_create",
                                      [&] { Table::make(Table::self().streams_, stream); });
          },
      .stream_destroy =
          [](CudaStream stream) {
            return Table::self().cuda("stream_destroy",
                                      [&] { Table::destroy<Table::Stream>(stream); });
          },
      .stream_wait_event = Table::stream_wait_event,
      .stream_is_capturing = Table::stream_is_capturing,
      .event_create =
          [](CudaEvent* event) {
            return Table::self().cuda("event_create",
                                      [&] { Table::make(Table::self().events_, event); });
          },
      .event_destroy =
          [](CudaEvent event) {
            return Table::self().cuda("event_destroy",
                                      [&] { Table::destroy<Table::Event>(event); });
          },
      .event_record = Table::event_record,
      .event_query = Table::event_query,
      .memcpy_async = Table::memcpy_async,
      .cuda_error_string = [](CudaResult) -> const char* { return "a failure that was planned"; },
      .current_stream =
          [](int) {
            const std::lock_guard lock(Table::self().mutex_);
            return reinterpret_cast<CudaStream>(&Table::self().own_stream());
          },
  };
  return kTable;
}

const NcclApi& NcclDouble::old_api() {
  static const NcclApi kTable = [] {
    NcclApi table = api();
    table.comm_init_rank_scalable = nullptr;
    table.comm_split = nullptr;
    table.comm_revoke = nullptr;
    table.mem_alloc = nullptr;
    table.mem_free = nullptr;
    table.comm_register = nullptr;
    table.comm_deregister = nullptr;
    return table;
  }();
  return kTable;
}

}  // namespace ddprun
