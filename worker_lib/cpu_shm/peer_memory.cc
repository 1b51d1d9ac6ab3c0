#include "worker_lib/cpu_shm/peer_memory.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/process_stat.h"

namespace ddprun {
namespace {

// The kernel checks the permission before the address: no process has a page at address 1.
bool may_read(pid_t pid) {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec there{reinterpret_cast<void*>(1), 1};
  return process_vm_readv(pid, &here, 1, &there, 1, 0) == 1 || errno == EFAULT;
}

// Parts: the parts of a range, as the kernel takes them. If there are very many, it has only the
// first.
class Parts {
 public:
  template <class Byte>
  Parts(const Scattered<Byte>& bytes, Range range) {
    bytes.for_each(range, [&](Byte* data, std::size_t, std::size_t length) {
      if (count_ == parts_.size()) return;
      parts_[count_++] = {const_cast<char*>(data), length};
    });
  }
  const iovec* data() const { return parts_.data(); }
  std::size_t count() const { return count_; }

 private:
  std::array<iovec, 64> parts_;
  std::size_t count_ = 0;
};

}  // namespace

PeerMemory::PeerMemory(std::span<const UniqueFd> lives) {
  for (const UniqueFd& life : lives) pids_.push_back(process_behind(life.get()));
  can_be_read_ = std::ranges::all_of(pids_, [](pid_t pid) { return pid > 0 && may_read(pid); });
}

bool PeerMemory::read(int local, const Scattered<const char>& from,
                      const Scattered<char>& to) const {
  constexpr std::size_t kAtOnce = std::size_t{1} << 30;  // the kernel limits the size
  for (std::size_t at = 0; at < to.bytes();) {
    const Range range{at, std::min(at + kAtOnce, to.bytes())};
    const Parts theirs(from, range);
    const Parts ours(to, range);
    const ssize_t got =
        process_vm_readv(pids_[local], ours.data(), ours.count(), theirs.data(), theirs.count(), 0);
    if (got <= 0) return false;
    at += got;
  }
  return true;
}

}  // namespace ddprun
