#include "worker_lib/serialization/atomic_file.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "base/file_calls.h"
#include "base/random_id.h"
#include "worker_lib/serialization/core/temporary_name.h"

namespace ddprun {

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)),
      temporary_(temporary_name(path_, random_hex(6))),
      stream_(UniqueFd(uninterrupted([&] {
                return file_calls().open(temporary_.c_str(),
                                         O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
              })),
              temporary_, [this](std::string_view piece) { digest_.add(piece); }) {}

AtomicFile::~AtomicFile() {
  stream_.join();
  if (!committed_) file_calls().unlink(temporary_.c_str());
}

Result<WrittenFile> AtomicFile::commit(const std::string& expected) {
  put_on_disk();
  if (stream_.failure()) return *stream_.failure();
  WrittenFile written = digest_.finish(path_.substr(path_.rfind('/') + 1));
  if (!expected.empty() && written.sha256 != expected)
    return Error{.kind = ErrorKind::kCorrupt,
                 .doing = "write " + path_,
                 .cause = "the SHA-256 of the written bytes is not the expected one"};
  if (file_calls().rename(temporary_.c_str(), path_.c_str()) != 0)
    return system_error("write " + temporary_, errno);
  committed_ = true;
  return written;
}

}  // namespace ddprun
