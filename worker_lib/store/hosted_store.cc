#include "worker_lib/store/hosted_store.h"

#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/background_thread.h"
#include "base/write_all.h"
#include "rendezvous/store/server.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;

void warn(const std::string& text) { write_all(STDERR_FILENO, "ddprun: warning: " + text + "\n"); }

}  // namespace

struct HostedStore::Impl {
  HostPort address;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::optional<StoreServer> server;
  std::thread thread;
};

HostedStore::HostedStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HostedStore>> HostedStore::start(Listener listener) {
  const std::string doing = "serve a store on " + to_text(listener.address);
  try {
    auto impl = std::make_unique<Impl>();
    impl->address = listener.address;
    // This is the process of a training, not of a store. So no process-wide setting is changed, and
    // the thread sleeps while there are no requests.
    // On loopback all ranks are on this host, so only this user's processes may connect.
    impl->server.emplace(
        impl->io, &warn, std::move(listener.socket),
        StoreServerOptions{.this_user_only = is_loopback_host(listener.address.host),
                           .alertness = Duration(0),
                           .owns_process = false});
    impl->server->start();
    const Result<void> started =
        start_thread(impl->thread, "ddprun-store", [&io = impl->io] { io.run(); });
    if (!started) return started.error().within(doing);
    return std::unique_ptr<HostedStore>(new HostedStore(std::move(impl)));
  } catch (const std::exception& thrown) {  // from Asio, if there are no descriptors
    return Error{.kind = ErrorKind::kSystem, .doing = doing, .cause = thrown.what()};
  }
}

HostedStore::~HostedStore() {
  asio::post(impl_->io, [this] {
    impl_->server.reset();
    impl_->work.reset();
  });
  impl_->thread.join();
}

const HostPort& HostedStore::address() const { return impl_->address; }

std::size_t HostedStore::connections() const {
  std::promise<std::size_t> count;  // from the server's thread
  asio::post(impl_->io, [&] { count.set_value(impl_->server->counters().connections); });
  return count.get_future().get();
}

}  // namespace ddprun
