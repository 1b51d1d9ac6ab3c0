#include "rendezvous/auth/munge.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/background_thread.h"
#include "base/library_function.h"
#include "base/openssl_loader.h"
#include "base/read_whole.h"
#include "base/unique_fd.h"
#include "rendezvous/auth/core/slurm_conf.h"

namespace ddprun {

struct MungeFunctions {
  void* (*create)() = nullptr;
  void (*destroy)(void*) = nullptr;
  int (*set)(void*, int option, ...) = nullptr;
  const char* (*context_error)(void*) = nullptr;
  const char* (*error)(int code) = nullptr;
  int (*encode)(char** credential, void*, const void* payload, int size) = nullptr;
  int (*decode)(const char* credential, void*, void** payload, int* size, uid_t*, gid_t*) = nullptr;
};

namespace {

// Constants of munge.h. Their numbers are part of the library's ABI.
constexpr int kOptionTtl = 4;
constexpr int kOptionSocket = 8;
constexpr int kOptionUserRestriction = 9;
constexpr int kSuccess = 0;
constexpr int kInternal = 1;
constexpr int kOverflow = 4;
constexpr int kNoMemory = 5;
constexpr int kSocketError = 6;
constexpr int kTimeout = 7;
constexpr int kCredentialInvalid = 14;
constexpr int kCredentialExpired = 15;
constexpr int kCredentialRewound = 16;
constexpr int kCredentialUnauthorized = 18;

// Returns true if munge itself failed. All other codes mean that the credential is wrong.
bool is_munges_trouble(int code) {
  return code == kInternal || code == kOverflow || code == kNoMemory || code == kSocketError ||
         code == kTimeout;
}

std::string hint_of(int code) {
  switch (code) {
    case kCredentialInvalid: return ": made with another munge key, or altered";
    case kCredentialExpired:
    case kCredentialRewound: return ": do the clocks of the nodes agree?";
    case kCredentialUnauthorized: return ": made for another user";
    default: return "";
  }
}

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};

// A context of libmunge, for the thread that made it only.
class Context {
 public:
  Context(const MungeFunctions& functions, const MungeOptions& options)
      : functions_(functions), context_(functions.create()) {
    if (!context_) return;
    if (!options.socket.empty()) functions.set(context_, kOptionSocket, options.socket.c_str());
    functions.set(context_, kOptionTtl, static_cast<int>(options.lifetime.count()));
  }
  ~Context() {
    if (context_) functions_.destroy(context_);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void* get() const { return context_; }

  Error error(std::string doing, int code) const {
    const char* details = functions_.context_error(context_);
    const char* text = details && *details ? details : functions_.error(code);
    return Error{.kind = is_munges_trouble(code) ? ErrorKind::kConnection : ErrorKind::kProtocol,
                 .doing = std::move(doing),
                 .cause = (text ? text : "munge error " + std::to_string(code)) + hint_of(code)};
  }

 private:
  const MungeFunctions& functions_;
  void* context_;
};

Error no_memory() {
  return Error{.kind = ErrorKind::kResource, .doing = "ask munge", .cause = "out of memory"};
}

}  // namespace

// --- asking ------------------------------------------------------------------------------------

MungeOutcome Munge::carry_out(const MungeTask& task) const {
  if (const auto* wanted = std::get_if<MakeCredential>(&task)) return make(*wanted);
  return read(std::get<ReadCredential>(task).credential);
}

MungeOutcome Munge::make(const MakeCredential& task) const {
  const Context context(*functions_, options_);
  if (!context.get()) return no_memory();
  functions_->set(context.get(), kOptionUserRestriction, static_cast<uid_t>(task.reader.value));
  char* raw = nullptr;
  const int code = functions_->encode(&raw, context.get(), task.statement.data(),
                                      static_cast<int>(task.statement.size()));
  const std::unique_ptr<char, Freed> credential(raw);
  if (code != kSuccess || !credential) {
    Error error = context.error("have munge make a credential", code);
    error.kind = ErrorKind::kConnection;  // no other party takes part, so munge itself failed
    return error;
  }
  return MungeAnswer{credential.get(), user_};
}

// Only the code counts. If a credential has expired or was read before, munge still returns its
// statement and user.
MungeOutcome Munge::read(const std::string& credential) const {
  const char* doing = "have munge read a credential";
  if (credential.empty() || credential.find('\0') != std::string::npos) {
    return Error{.kind = ErrorKind::kProtocol, .doing = doing, .cause = "not a credential"};
  }
  const Context context(*functions_, options_);
  if (!context.get()) return no_memory();
  void* raw = nullptr;
  int size = 0;
  uid_t user = 0;
  gid_t group = 0;
  const int code =
      functions_->decode(credential.c_str(), context.get(), &raw, &size, &user, &group);
  const std::unique_ptr<void, Freed> payload(raw);
  if (code != kSuccess) return context.error(doing, code);
  std::string statement;
  if (payload && size > 0) {
    statement.assign(static_cast<const char*>(payload.get()), static_cast<std::size_t>(size));
  }
  return MungeAnswer{std::move(statement), UserId(user)};
}

// --- finding it --------------------------------------------------------------------------------

// The library stays loaded, because a thread may still wait in it.
FoundMunge ask_munge(const MungeOptions& options) {
  if (const Result<void> there = load_openssl(); !there) return {nullptr, there.error().message()};
  void* library = dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    return {nullptr, why ? why : "no " + options.library};
  }
  const auto functions = std::make_shared<MungeFunctions>();
  MungeFunctions& f = *functions;
  const bool complete = find_function(library, "munge_ctx_create", f.create) &&
                        find_function(library, "munge_ctx_destroy", f.destroy) &&
                        find_function(library, "munge_ctx_set", f.set) &&
                        find_function(library, "munge_ctx_strerror", f.context_error) &&
                        find_function(library, "munge_strerror", f.error) &&
                        find_function(library, "munge_encode", f.encode) &&
                        find_function(library, "munge_decode", f.decode);
  if (!complete) return {nullptr, options.library + " is not libmunge"};
  const std::shared_ptr<Munge> munge(new Munge(functions, options));
  const std::string statement = "is munged there?";
  const MungeOutcome made = munge->make({statement, UserId(geteuid())});
  if (!made) return {nullptr, made.error().message()};
  const MungeOutcome read = munge->read(made->text);
  if (!read) return {nullptr, read.error().message()};
  munge->user_ = read->maker;
  return {munge, ""};
}

std::string slurm_conf() {
  constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 20;
  const char* named = std::getenv("SLURM_CONF");
  // The last one is what slurmd has fetched where only the controller has a file. Source:
  // Slurm, "Configless Slurm".
  const std::vector<std::string> paths =
      named && *named
          ? std::vector<std::string>{named}
          : std::vector<std::string>{"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"};
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.valid()) continue;
    const Result<std::string> text = read_whole<std::string>(file.get(), path, kMostBytes);
    return text ? *text : "";
  }
  return "";
}

FoundMunge find_munge(const MungeOptions& given, Duration allowed) {
  MungeOptions options = given;
  if (options.socket == kNoMunge) return {nullptr, "--munge-socket none"};
  if (options.socket.empty()) options.socket = munge_socket_of(slurm_conf());
  const auto answer =
      result_within<FoundMunge>(allowed, "munge-ask", [options] { return ask_munge(options); });
  if (!answer) return {nullptr, "munged did not answer within " + to_text(allowed)};
  if (!*answer) return {nullptr, answer->error().message()};
  return **answer;
}

}  // namespace ddprun
