#include "launcher/doctor/service.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "base/deadline.h"
#include "base/parse_number.h"
#include "base/random_id.h"
#include "base/terminal_text.h"
#include "base/version.h"
#include "rendezvous/auth/core/proof.h"
#include "rendezvous/auth/tls_channel.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/protocol/core/handshake.h"

namespace ddprun {
namespace {

using Outcome = ServiceAnswer::Outcome;

constexpr Duration kPatience = std::chrono::seconds(2);
constexpr std::size_t kMaxAnswer = 64 * 1024;  // the fields of interest come first

// Conversation: a connection, with or without TLS.
class Conversation {
 public:
  static Result<Conversation> open(const EndpointRequest& endpoint, const SocketAddress& address,
                                   const Deadline& deadline) {
    Result<BlockingSocket> socket = BlockingSocket::connect(address, deadline);
    if (!socket) return socket.error();
    Conversation made(std::move(*socket));
    if (!endpoint.tls) return made;
    made.tls_.emplace(TlsChannel::agent(endpoint.tls, endpoint.address.host));
    if (const Result<void> sent = made.flush(deadline); !sent) return sent.error();
    while (!made.tls_->is_open()) {
      if (const Result<void> moved = made.take(deadline); !moved) return moved.error();
    }
    return made;
  }

  Result<void> send(std::string_view plain, const Deadline& deadline) {
    if (!tls_) return socket_.send_all(plain, deadline);
    tls_->send(plain);
    return flush(deadline);
  }

  // Waits until the other side has sent something and returns it; at least one byte.
  Result<std::string> receive(const Deadline& deadline) {
    while (plain_.empty()) {
      if (tls_ && tls_->is_ended()) {
        return Error{.kind = ErrorKind::kConnection, .cause = "it closed the connection"};
      }
      if (const Result<void> moved = take(deadline); !moved) return moved.error();
    }
    return std::exchange(plain_, {});
  }

  std::string binding() const { return tls_ ? tls_->binding() : ""; }

 private:
  explicit Conversation(BlockingSocket socket) : socket_(std::move(socket)) {}

  Result<void> take(const Deadline& deadline) {
    std::array<char, 16384> space;
    const Result<std::size_t> got = socket_.receive(space, deadline);
    if (!got) return got.error();
    const std::string_view bytes(space.data(), *got);
    if (!tls_) {
      plain_ += bytes;
      return {};
    }
    Result<void> understood = tls_->receive(bytes);
    plain_ += tls_->take_plain();
    if (const Result<void> sent = flush(deadline); !sent && understood) return sent;
    return understood;
  }

  Result<void> flush(const Deadline& deadline) {
    if (!tls_) return {};
    const std::string wire = tls_->take_wire();
    return wire.empty() ? Result<void>() : socket_.send_all(wire, deadline);
  }

  BlockingSocket socket_;
  std::optional<TlsChannel> tls_;
  std::string plain_;
};

// Returns the string members of a JSON object, up to a nested value or to where the text is
// truncated.
std::map<std::string, std::string> top_texts(std::string_view text) {
  using Json = nlohmann::json;
  using Event = Json::parse_event_t;
  std::map<std::string, std::string> texts;
  std::string key;
  bool has_ended = false;
  const auto take = [&](int depth, Event event, Json& parsed) {
    has_ended =
        has_ended || event == Event::array_start || (event == Event::object_start && depth > 0);
    if (!has_ended && event == Event::key) key = parsed.get<std::string>();
    if (!has_ended && event == Event::value && parsed.is_string()) texts[key] = parsed;
    return true;
  };
  [[maybe_unused]] const Json ignored = Json::parse(text, take, /*allow_exceptions=*/false);
  return texts;
}

// Returns an answer for an error: kSilent for a timeout, `otherwise` for any other error.
ServiceAnswer failed(const Error& error, const Deadline& deadline, Outcome otherwise) {
  ServiceAnswer answer{.outcome = otherwise, .took = deadline.waited(), .why = error.message()};
  if (error.kind == ErrorKind::kTimeout) answer.outcome = Outcome::kSilent;
  return answer;
}

Duration now_in_utc() {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch());
}

ServiceAnswer read_page(const EndpointRequest& endpoint, const SocketAddress& address) {
  const Deadline deadline(kPatience);
  const auto at_fault = endpoint.tls ? Outcome::kTlsFailed : Outcome::kOther;
  Result<Conversation> conversation = Conversation::open(endpoint, address, deadline);
  if (!conversation) return failed(conversation.error(), deadline, at_fault);
  std::string request = "GET /status.json HTTP/1.1\r\nHost: " + to_text(endpoint.address) +
                        "\r\nUser-Agent: ddprun-doctor\r\nConnection: close\r\n";
  if (!endpoint.key_for_all.empty()) {
    request += "Authorization: Bearer " + read_token_of(endpoint.key_for_all.view()) + "\r\n";
  }
  const Result<void> sent = conversation->send(request + "\r\n", deadline);
  if (!sent) return failed(sent.error(), deadline, at_fault);
  std::string heard;
  Duration ours{};
  while (heard.size() < kMaxAnswer) {
    const Result<std::string> more = conversation->receive(deadline);
    if (!more) {
      if (heard.empty()) return failed(more.error(), deadline, at_fault);
      break;
    }
    if (heard.empty()) ours = now_in_utc() - deadline.waited() / 2;
    heard += *more;
  }
  ServiceAnswer answer = read_status_answer(heard, ours);
  answer.took = deadline.waited();
  return answer;
}

// Receives the service's next message in the handshake.
Result<ServiceHandshakeMessage> next_message(Conversation& conversation, FrameReader& reader,
                                             const Deadline& deadline) {
  while (true) {
    const auto frame = reader.next();
    if (!frame) return frame.error();
    if (*frame) return decode<ServiceHandshakeMessage>(**frame);
    const Result<std::string> more = conversation.receive(deadline);
    if (!more) return more.error();
    reader.append(*more);
  }
}

// Checks whether the service has the same key. REQUIRES: endpoint.key is set.
Result<void> prove_key(const EndpointRequest& endpoint, const SocketAddress& address) {
  const Deadline deadline(kPatience);
  Result<Conversation> conversation = Conversation::open(endpoint, address, deadline);
  if (!conversation) return conversation.error();
  const Knock knock{.version = kVersion, .job = endpoint.job, .nonce = random_hex(kNonceBytes)};
  AgentHandshake handshake(endpoint.key, knock, conversation->binding());
  FrameReader reader;
  AgentHandshakeMessage next = handshake.knock();
  while (true) {
    const Result<std::string> frame = encode(next);
    if (!frame) return frame.error();
    if (const Result<void> sent = conversation->send(*frame, deadline); !sent) return sent.error();
    const Result<ServiceHandshakeMessage> message = next_message(*conversation, reader, deadline);
    if (!message) return message.error();
    const Result<AgentHandshake::Step> step = handshake.receive(*message);
    if (!step) return step.error();
    if (const auto* refused = std::get_if<Refused>(&*step))
      return invalid_argument(refused->reason);
    if (const auto* silence = std::get_if<Silence>(&*step))
      return invalid_argument(silence->reason);
    const auto* proof = std::get_if<Proof>(&*step);
    if (!proof) return {};
    next = *proof;
  }
}

}  // namespace

std::optional<Duration> parse_utc(const std::string& text) {
  using namespace std::chrono;
  int year_number = 0;
  unsigned month_number = 0;
  unsigned day_number = 0;
  int hour = 0;
  int minute = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%d-%u-%uT%d:%d:%lfZ", &year_number, &month_number, &day_number,
                  &hour, &minute, &second) != 6) {
    return std::nullopt;
  }
  const year_month_day date{year(year_number), month(month_number), day(day_number)};
  if (!date.ok()) return std::nullopt;
  return duration_cast<Duration>(sys_days(date).time_since_epoch() + hours(hour) +
                                 minutes(minute)) +
         duration_cast<Duration>(duration<double>(second));
}

ServiceAnswer read_status_answer(std::string_view heard, Duration ours) {
  ServiceAnswer answer{.outcome = Outcome::kOther};
  constexpr std::string_view kHttp = "HTTP/1.";
  const std::size_t end = heard.find("\r\n\r\n");
  if (!heard.starts_with(kHttp) || end == std::string_view::npos) {
    answer.why = "it does not speak HTTP";
    return answer;
  }
  const std::size_t status_at = std::min(heard.find(' '), end) + 1;
  const int status = parse_number<int>(heard.substr(status_at, 3)).value_or(0);
  const std::string_view body = heard.substr(end + 4);
  if (status == 401 && body.find("--print-read-token") != std::string_view::npos) {
    answer.outcome = Outcome::kWantsKey;
    return answer;
  }
  if (status == 403 && body.find("without TLS") != std::string_view::npos) {
    answer.outcome = Outcome::kWantsTls;
    return answer;
  }
  // Another service of several has the page (rendezvous/service/pages.cc).
  constexpr std::string_view kStandby = "the leader has this page: ";
  if (status == 307 && body.starts_with(kStandby)) {
    answer.outcome = Outcome::kService;
    answer.why = "it stands by: " +
                 terminal_line(body.substr(kStandby.size(), body.find('\n') - kStandby.size())) +
                 " leads";
    return answer;
  }
  if (status == 503 && body.starts_with("no service is known to lead")) {
    answer.outcome = Outcome::kNoLeader;
    answer.why = "it stands by, and no service leads";
    return answer;
  }
  std::map<std::string, std::string> texts = top_texts(body);
  const bool is_ours = texts.contains("version") && texts.contains("host");
  if (status != 200 || !is_ours) {
    answer.why = "it answers HTTP " + std::to_string(status) + " when asked for /status.json";
    return answer;
  }
  answer.outcome = Outcome::kService;
  answer.version = texts["version"];
  answer.host = texts["host"];
  if (const auto theirs = parse_utc(texts["time"])) answer.clock_ahead = *theirs - ours;
  return answer;
}

ServiceAnswer ask_service(const EndpointRequest& endpoint, const SocketAddress& address) {
  ServiceAnswer answer = read_page(endpoint, address);
  const bool may_be_ours =
      answer.outcome == Outcome::kService || answer.outcome == Outcome::kWantsKey;
  if (!may_be_ours || endpoint.key.empty()) return answer;
  const Result<void> proved = prove_key(endpoint, address);
  answer.has_proved = proved.has_value();
  answer.outcome = proved ? Outcome::kService : Outcome::kRefusesKey;
  if (!proved) answer.why = proved.error().message();
  return answer;
}

}  // namespace ddprun
