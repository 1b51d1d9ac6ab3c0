// HttpExchange: the HTTP/1.1 protocol of one connection, without its socket. Bytes come in,
// answers come out. Boost.Beast parses and writes them. Only exchange.cc includes Beast,
// because its headers are slow to compile.
//
// It accepts GET and HEAD without a body, and POST of a short form to kPostPaths only. The header
// of a request has at most kMaxHeaderBytes. It is parsed
// twice: when its first line is complete, so that invalid data is answered at once, and when
// its header is complete. The result does not depend on how the bytes were split. The last
// answer of a connection says `Connection: close`, and nothing is read after it. It is the
// last after a bad request, because the end of that request is unknown, and after
// `max_requests`.
//
// One owner thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/net/core/byte_buffer.h"

namespace ddprun {

// Shared, because one large page may be in transit to many clients at once.
using HttpBody = std::shared_ptr<const std::string>;

inline HttpBody body_of(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

struct HttpPage;
// Takes a page that is made later.
using HttpFinish = std::function<void(HttpPage)>;

// HttpFeed: events for one connection alone. It is destroyed when the connection is closed.
class HttpFeed {
 public:
  virtual ~HttpFeed() = default;
  // Begins the feed. Called once, when the head was sent. wake() says that take() has events. The
  // feed calls it on the same thread, not from within take(), and not after its own end.
  virtual void begin(std::function<void()> wake) = 0;
  // Returns the events since the last call, in the form of event_text(); empty: none.
  virtual std::string take() = 0;
};

struct HttpPage {
  std::string type = "text/plain; charset=utf-8";
  HttpBody body;
  int status = 200;
  std::string location = {};            // of a redirection
  std::string cookie = {};              // to be set
  bool is_stream = false;               // the body has no end: HttpEntry sends it
  std::shared_ptr<HttpFeed> feed = {};  // of a stream; null: it has the editions of the status
  // If set, the page is made later, and the other fields do not count. HttpEntry calls it once. It
  // must call the function that it is given once, on the same thread, within a time of its own.
  std::function<void(const HttpFinish&)> later = {};
};

// Returns a page with one line of text.
inline HttpPage text_page(const std::string& line, int status = 200) {
  return {.body = body_of(line + "\n"), .status = status};
}

struct HttpRequest {
  std::string_view path;           // without the query
  std::string_view authorization;  // that field's value; empty if there is none
  bool encrypted = false;          // the connection has TLS
  // The same for these fields.
  std::string_view cookie = {};
  std::string_view origin = {};
  std::string_view host = {};
  bool is_post = false;
  std::string_view body = {};   // of a POST
  std::string peer = {};        // numeric address of the client
  std::string_view query = {};  // what follows ?
};

// Returns the page that a request asks for; nullopt: there is no such page.
using HttpPages = std::function<std::optional<HttpPage>(const HttpRequest& request)>;

struct HttpAnswer {
  std::string head;
  HttpBody body;  // null: no body follows the head
  int status = 0;
  bool last = false;                    // close the connection after sending it
  bool is_stream = false;               // events follow; also `last`
  std::shared_ptr<HttpFeed> feed = {};  // as in HttpPage
  // If set, the answer is not known yet: call it, then HttpExchange::finish() with the page.
  std::function<void(const HttpFinish&)> later = {};
};

class HttpExchange {
 public:
  static constexpr std::size_t kMaxHeaderBytes = 8192;
  static constexpr std::size_t kMaxBodyBytes = 4096;  // an id of kMaxNameBytes, all of it as %XX
  static constexpr std::array<std::string_view, 2> kPostPaths{"/token", "/act"};

  static bool takes_post(std::string_view path) { return std::ranges::count(kPostPaths, path) > 0; }

  // REQUIRES: max_requests >= 1.
  HttpExchange(HttpPages pages, std::size_t max_requests)
      : pages_(std::move(pages)), requests_left_(max_requests) {}

  // REQUIRES: next() has answered all earlier bytes, and the last answer was not given.
  void append(std::string_view bytes) { buffer_.append(bytes); }
  // Returns the answer to the next request. nullopt: more bytes are needed, or the last answer
  // was given.
  std::optional<HttpAnswer> next();
  // Returns the answer with this page. REQUIRES: the last one of next() has `later`.
  HttpAnswer finish(const HttpPage& page);
  // Returns whether a part of a request has come.
  bool has_begun() const { return !buffer_.empty(); }
  // Returns this answer and ends the exchange. Bytes that have come are dropped.
  HttpAnswer refuse(int status, const std::string& why);

  // Returns the memory held for received bytes.
  std::size_t capacity() const { return buffer_.capacity(); }

 private:
  // Asked: what finish() needs to know of the request.
  struct Asked {
    bool with_body = true;
    bool last = false;
    std::string_view methods = {};
  };
  std::optional<HttpAnswer> answer(std::string_view header, std::size_t& size);

  HttpPages pages_;
  std::size_t requests_left_;
  ByteBuffer buffer_;
  std::size_t searched_ = 0;  // bytes of the buffer in which no header ends
  bool begins_well_ = false;  // the first line of the request was checked
  bool over_ = false;
  Asked asked_;
};

}  // namespace ddprun
