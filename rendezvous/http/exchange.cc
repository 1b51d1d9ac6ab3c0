#include "rendezvous/http/exchange.h"

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>

namespace ddprun {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;
using Parser = http::request_parser<http::empty_body>;

constexpr std::string_view kEndOfHeader = "\r\n\r\n";
constexpr std::string_view kMethods = "GET, HEAD";  // of every page but those of kPostPaths

// Parses the bytes as the beginning of a request. Returns what is wrong with them, or an empty
// string.
std::string parse(Parser& parser, std::string_view bytes) {
  parser.header_limit(HttpExchange::kMaxHeaderBytes);
  parser.body_limit(boost::none);  // a body is refused, whatever its length
  error_code error;
  parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
  return !error || error == http::error::need_more ? "" : error.message();
}

// Returns whether a header line begins with a blank, which continues the field before it.
// Servers and proxies have interpreted this differently (RFC 9112, 5.2), so one may see a
// field where another does not.
bool has_folded_line(std::string_view header) {
  for (std::size_t at = header.find('\n'); at != header.npos; at = header.find('\n', at + 1)) {
    if (at + 1 < header.size() && (header[at + 1] == ' ' || header[at + 1] == '\t')) return true;
  }
  return false;
}

struct Head {
  int status = 200;
  std::string_view type;
  std::optional<std::size_t> content_length = {};  // nullopt: a stream
  bool last = false;
  std::string_view allow = {};  // the allowed methods, of a 405
  bool challenge = false;       // name the authorization scheme
  std::string_view location = {};
  std::string_view cookie = {};
};

// What a browser may do with a page of ours: load files from this service and nothing else. No
// other site may show it in a frame, and no type is guessed.
constexpr std::string_view kContentPolicy =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

std::string write(const Head& head) {
  http::response<http::empty_body> response(http::int_to_status(static_cast<unsigned>(head.status)),
                                            11);
  response.set(http::field::content_type, {head.type.data(), head.type.size()});
  response.set(http::field::cache_control, "no-store");
  response.set("Content-Security-Policy", {kContentPolicy.data(), kContentPolicy.size()});
  response.set("X-Content-Type-Options", "nosniff");
  response.set("Referrer-Policy", "same-origin");
  if (!head.allow.empty()) {
    response.set(http::field::allow, {head.allow.data(), head.allow.size()});
  }
  if (head.challenge) response.set(http::field::www_authenticate, "Bearer");
  if (!head.location.empty()) {
    response.set(http::field::location, {head.location.data(), head.location.size()});
  }
  if (!head.cookie.empty()) {
    response.set(http::field::set_cookie, {head.cookie.data(), head.cookie.size()});
  }
  if (head.content_length) response.content_length(*head.content_length);
  response.keep_alive(!head.last);
  std::ostringstream text;
  text << response.base();
  return std::move(text).str();
}

// methods: those that are allowed.
HttpAnswer to_answer(const HttpPage& page, bool with_body, bool last, std::string_view methods) {
  Head head{.status = page.status,
            .type = page.type,
            .last = last || page.is_stream,
            .allow = page.status == 405 ? methods : "",
            .challenge = page.status == 401,
            .location = page.location,
            .cookie = page.cookie};
  if (page.body) head.content_length = page.body->size();
  return {.head = write(head),
          .body = with_body ? page.body : nullptr,
          .status = page.status,
          .last = head.last,
          .is_stream = with_body && page.is_stream,
          .feed = with_body ? page.feed : nullptr};
}

}  // namespace

std::optional<HttpAnswer> HttpExchange::next() {
  if (over_) return std::nullopt;
  const std::string_view bytes = buffer_.bytes().substr(0, kMaxHeaderBytes);
  if (!begins_well_) {
    const std::size_t first_line = bytes.find('\n', searched_);
    if (first_line != bytes.npos) {
      if (!bytes.substr(0, first_line).ends_with('\r')) return refuse(400, "lines end with CR LF");
      Parser parser;
      const std::string wrong = parse(parser, bytes.substr(0, first_line + 1));
      if (!wrong.empty()) return refuse(400, wrong);
      begins_well_ = true;
    }
  }
  const std::size_t end = bytes.find(kEndOfHeader, searched_);
  if (end == bytes.npos) {
    if (bytes.size() == kMaxHeaderBytes) {
      return refuse(431, "a request has at most " + std::to_string(kMaxHeaderBytes) + " bytes");
    }
    searched_ = bytes.size() - std::min(bytes.size(), kEndOfHeader.size() - 1);
    return std::nullopt;
  }
  std::size_t size = end + kEndOfHeader.size();
  std::optional<HttpAnswer> answered = answer(bytes.substr(0, size), size);
  if (!answered) return std::nullopt;
  over_ = answered->last;
  buffer_.consume(over_ ? buffer_.size() : size);
  searched_ = 0;
  begins_well_ = false;
  return answered;
}

// Answers the request with this header. nullopt: its body is not complete. `size`: of the header;
// the size of the body is added.
std::optional<HttpAnswer> HttpExchange::answer(std::string_view header, std::size_t& size) {
  if (has_folded_line(header)) return refuse(400, "a field of the header is one line");
  Parser parser;
  if (const std::string wrong = parse(parser, header); !wrong.empty()) return refuse(400, wrong);
  // Beast waits for more bytes if a line is too short for its required parts.
  if (!parser.is_header_done()) return refuse(400, "a line of the request is cut short");
  const auto& request = parser.get();
  const bool is_head = request.method() == http::verb::head;
  const std::string_view target(request.target().data(), request.target().size());
  const std::string_view path = target.substr(0, target.find('?'));
  const std::string_view query = target.substr(std::min(target.size(), path.size() + 1));
  const bool is_post = request.method() == http::verb::post && takes_post(path);
  if (!is_head && !is_post && request.method() != http::verb::get) {
    return refuse(405, "only GET and HEAD are supported");
  }
  // Refused also in a form that Beast does not know and skips: the end of the request is in
  // doubt then.
  const std::uint64_t body_bytes = parser.content_length().value_or(0);
  if (request.count(http::field::transfer_encoding) > 0 || (!is_post && body_bytes > 0)) {
    return refuse(400, is_post ? "a body has a Content-Length" : "GET and HEAD have no body");
  }
  if (body_bytes > kMaxBodyBytes) {
    return refuse(413, "a body has at most " + std::to_string(kMaxBodyBytes) + " bytes");
  }
  if (request.version() >= 11 && request.count(http::field::host) != 1) {
    return refuse(400, "HTTP/1.1 requires one Host field");
  }
  if (buffer_.size() < size + body_bytes) return std::nullopt;
  const std::string_view body = buffer_.bytes().substr(size, body_bytes);
  size += body_bytes;
  const bool last = --requests_left_ == 0 || !request.keep_alive();
  const auto value = [&](http::field field) {
    const auto text = request[field];
    return std::string_view(text.data(), text.size());
  };
  std::optional<HttpPage> page = pages_({.path = path,
                                         .authorization = value(http::field::authorization),
                                         .cookie = value(http::field::cookie),
                                         .origin = value(http::field::origin),
                                         .host = value(http::field::host),
                                         .is_post = is_post,
                                         .body = body,
                                         .query = query});
  if (!page) page = text_page("no such page", 404);
  asked_ = {!is_head, last, takes_post(path) ? "POST" : kMethods};
  if (page->later) return HttpAnswer{.last = last, .later = std::move(page->later)};
  return finish(*page);
}

HttpAnswer HttpExchange::finish(const HttpPage& page) {
  return to_answer(page, asked_.with_body, asked_.last, asked_.methods);
}

HttpAnswer HttpExchange::refuse(int status, const std::string& why) {
  over_ = true;
  buffer_.consume(buffer_.size());
  return to_answer(text_page(why, status), true, true, kMethods);
}

}  // namespace ddprun
