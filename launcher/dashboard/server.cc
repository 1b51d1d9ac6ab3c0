#include "launcher/dashboard/server.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/random_id.h"
#include "launcher/control/local_jobs.h"
#include "launcher/dashboard/access.h"
#include "launcher/dashboard/command_feed.h"
#include "rendezvous/http/core/browser.h"
#include "rendezvous/http/core/event_feed.h"
#include "rendezvous/http/entry.h"
#include "rendezvous/http/page_files.h"
#include "rendezvous/http/page_forms.h"
#include "rendezvous/net/connection_owner.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/transport/transport.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr Duration kRefresh = std::chrono::seconds(1);
constexpr int kOrders = 4;         // at a time
constexpr int kLooks = 2;          // of them: pages make these by themselves
constexpr std::size_t kFeeds = 8;  // at a time: each is a process
constexpr std::string_view kLines = "200";

}  // namespace

class DashboardServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, JobWatch watch, DashboardStatus first, RankCommands commands,
       const std::string& token, std::function<void()> over)
      : io_(io),
        commands_(std::move(commands)),
        order_watch_(watch),
        status_watch_(std::move(watch)),
        status_(std::move(first)),
        access_(token, random_hex(32), random_hex(4)),
        over_(std::move(over)),
        timer_(io),
        entry_(
            std::in_place, [this](const HttpRequest& request) { return page(request); },
            HttpLimits{}, [this] { return body_of(event_text(status_.text())); }) {}

  void start(UniqueFd listener) {
    acceptor_.emplace(
        io_, std::move(listener),
        TcpAcceptorEvents{
            .client = [this](tcp::socket socket,
                             const SocketAddress& peer) { welcome(std::move(socket), peer); },
            .cannot_accept = [this](const std::string& why) { warn(why); }});
    acceptor_->open();
    fetch_later();
  }

  void stop() {
    is_stopped_ = true;
    acceptor_.reset();
    entry_.reset();
    timer_.cancel();
  }

  std::string job() const { return status_.job(); }

 private:
  // --- browsers -------------------------------------------------------------------------------

  void welcome(tcp::socket socket, const SocketAddress& peer) {
    const SocketAddress local = local_address_of(socket.native_handle());
    if (const std::string why = why_not_this_user("page", peer, local); !why.empty()) {
      return warn("closed a connection: " + why);
    }
    entry_->adopt(std::make_shared<Transport>(std::move(socket)), {});
  }

  // Another user may connect often, so only the first line is written.
  void warn(const std::string& why) {
    if (!std::exchange(has_warned_, true)) std::fprintf(stderr, "ddprun: %s\n", why.c_str());
  }

  std::optional<HttpPage> page(const HttpRequest& request) {
    const std::string_view path = request.path;
    if (const PageFile* file = find_page_file(path)) {
      return HttpPage{.type = std::string(file->type), .body = body_of(std::string(file->text))};
    }
    if (path == kTokenPath) return access_.take_token(request);
    const bool may = access_.may_use(request);
    if (path == kRightsPath) return rights_page({.reads = may, .acts = may, .is_dashboard = true});
    if (!may) return text_page("open the address that ddprun dashboard has printed", 401);
    if (path == kOrderPath) return page_of_order(request);
    if (path == "/status.json") {
      return HttpPage{.type = "application/json", .body = body_of(status_.text())};
    }
    if (path == "/events") return HttpPage{.type = "text/event-stream", .is_stream = true};
    if (const std::optional<Rank> rank = rank_in_path(path, "/output/")) {
      return feed_of(*rank);
    }
    if (const std::optional<Rank> rank = rank_in_path(path, "/flight/")) {
      return page_of_answer({.what = UserRequest::What::kFlight,
                             .number = 1,
                             .job = job(),
                             .by = who_asks(),
                             .rank = *rank});
    }
    return std::nullopt;
  }

  // Returns a stream of what the rank writes.
  HttpPage feed_of(Rank rank) {
    std::erase_if(feeds_, [](const auto& feed) { return feed.expired(); });
    if (feeds_.size() >= kFeeds) return text_page(std::string(kTooManyOrders), 503);
    std::vector<std::string> words{commands_.program, "logs", concat("--rank=", rank), "--follow",
                                   concat("--lines=", kLines)};
    words.insert(words.end(), commands_.arguments.begin(), commands_.arguments.end());
    auto feed = std::make_shared<CommandFeed>(io_, std::move(words), commands_.variables);
    feeds_.push_back(feed);
    return {.type = "text/event-stream", .is_stream = true, .feed = std::move(feed)};
  }

  HttpPage page_of_order(const HttpRequest& request) {
    if (std::optional<HttpPage> refused = refuse_form(request)) return *refused;
    const std::optional<PageOrder> order = order_in_form(request.body);
    if (!order) return text_page(std::string(kOrderFormIs), 400);
    if (order->job != job()) return text_page("this page has no such job", 404);
    if (std::optional<HttpPage> late = refuse_late(*order, status_.generation())) return *late;
    return page_of_answer({.what = order->what,
                           .number = 1,
                           .job = order->job,
                           .by = who_asks(),
                           .rank = order->rank});
  }

  // Returns the page that answers this request.
  HttpPage page_of_answer(UserRequest asked) {
    const bool is_look = asked.what == UserRequest::What::kFlight;
    if (orders_ >= kOrders || (is_look && looks_ >= kLooks)) {
      return text_page(std::string(kTooManyOrders), 503);
    }
    return HttpPage{.later = [this, asked = std::move(asked)](const HttpFinish& finish) {
      ask(asked, finish);
    }};
  }

  // --- questions to the job -------------------------------------------------------------------

  void ask(const UserRequest& request, const HttpFinish& finish) {
    const int looks = request.what == UserRequest::What::kFlight ? 1 : 0;
    ++orders_;
    looks_ += looks;
    const Result<void> started =
        start_detached_thread("order", [self = shared_from_this(), request, looks, finish] {
          PageReply reply;
          std::optional<HttpPage> page;
          const Answer last = self->order_watch_.ask(request, [&](const Answer& part) {
            page = reply.take(part);
            return !page;
          });
          if (!page) page = reply.take(last);
          asio::post(self->io_, [self, looks, finish, page] {
            --self->orders_;
            self->looks_ -= looks;
            if (!self->is_stopped_) finish(*page);
          });
        });
    if (started) return;
    --orders_;
    looks_ -= looks;
    finish(text_page(started.error().message(), 503));
  }

  void fetch_later() {
    timer_.expires_after(kRefresh);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error && !self->is_stopped_) self->fetch();
    });
  }

  void fetch() {
    const Result<void> started = start_detached_thread("status", [self = shared_from_this()] {
      asio::post(self->io_, [self, picture = self->status_watch_.picture()] {
        if (!self->is_stopped_) self->take(picture);
      });
    });
    if (started) return;
    take({.trouble = started.error().message(), .code = ExitCode::kNoAnswer});
  }

  void take(const JobPicture& picture) {
    const bool is_new =
        picture.trouble.empty() && status_.take(picture.json, std::chrono::system_clock::now());
    if (picture.code == ExitCode::kNoJob) status_.end();
    status_.set_trouble(is_new                    ? ""
                        : status_.is_over()       ? "the job has ended"
                        : picture.trouble.empty() ? "the rendezvous service does not answer"
                                                  : picture.trouble);
    if (status_.is_over()) {
      entry_->show_last();
      return over_();
    }
    entry_->changed();
    fetch_later();
  }

  asio::io_context& io_;
  const RankCommands commands_;
  std::vector<std::weak_ptr<HttpFeed>> feeds_;
  const JobWatch order_watch_;  // several threads may use it
  JobWatch status_watch_;       // of the thread that asks for the status; there is one at a time
  DashboardStatus status_;
  DashboardAccess access_;
  std::function<void()> over_;
  asio::steady_timer timer_;
  std::optional<HttpEntry> entry_;
  std::optional<TcpAcceptor> acceptor_;
  int orders_ = 0;
  int looks_ = 0;  // of them
  bool has_warned_ = false;
  bool is_stopped_ = false;
};

DashboardServer::DashboardServer(asio::io_context& io, UniqueFd listener, JobWatch watch,
                                 DashboardStatus first, RankCommands commands,
                                 const std::string& token, std::function<void()> over)
    : impl_(std::make_shared<Impl>(io, std::move(watch), std::move(first), std::move(commands),
                                   token, std::move(over))) {
  impl_->start(std::move(listener));
}

DashboardServer::~DashboardServer() { close(); }

void DashboardServer::close() { impl_->stop(); }

}  // namespace ddprun
