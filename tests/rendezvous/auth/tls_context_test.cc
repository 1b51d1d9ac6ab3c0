// Tests which TLS files are accepted, and the messages for those that are not.
#include "rendezvous/auth/tls_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::Authority;
using testing_support::IssuedFiles;
using testing_support::TemporaryDirectory;

class TlsContextTest : public testing::Test {
 protected:
  static std::string error_of(const Result<FoundTls>& found) {
    EXPECT_FALSE(found);
    const std::string text = found ? "" : found.error().message();
    EXPECT_EQ(text.find('\n'), text.npos);
    return text;
  }
  const TemporaryDirectory directory_;
  const Authority authority_{directory_.path(), "ours"};
  const IssuedFiles node_ = authority_.issue("node");
  const TlsFiles all_{.cert = node_.cert, .key = node_.key, .ca = authority_.ca_file()};
};

TEST_F(TlsContextTest, WithAnAuthorityAServiceDemandsCertificates) {
  const auto mutual = TlsContext::for_service(all_);
  ASSERT_TRUE(mutual) << mutual.error().message();
  EXPECT_TRUE(mutual->context->demands_certificates());
  EXPECT_EQ(mutual->remark, "");
  const auto one_sided = TlsContext::for_service({.cert = node_.cert, .key = node_.key, .ca = {}});
  ASSERT_TRUE(one_sided) << one_sided.error().message();
  EXPECT_FALSE(one_sided->context->demands_certificates());
}

TEST_F(TlsContextTest, AnAgentNeedsNoCertificateAndNoFileOfAuthorities) {
  for (const TlsFiles& files : {all_, TlsFiles{.cert = {}, .key = {}, .ca = authority_.ca_file()},
                                TlsFiles{.cert = {}, .key = {}, .ca = TlsFiles::kSystem},
                                TlsFiles{.cert = node_.cert, .key = node_.key, .ca = {}}}) {
    const auto found = TlsContext::for_agent(files);
    EXPECT_TRUE(found) << found.error().message();
  }
}

TEST_F(TlsContextTest, WhatIsMissingIsNamedWithItsOption) {
  EXPECT_THAT(error_of(TlsContext::for_service({.cert = {}, .key = {}, .ca = all_.ca})),
              HasSubstr("needs a certificate and its key (--rdzv-tls-cert and --rdzv-tls-key)"));
  EXPECT_THAT(error_of(TlsContext::for_agent({.cert = all_.cert, .key = {}, .ca = {}})),
              HasSubstr("--rdzv-tls-cert: needs --rdzv-tls-key"));
  EXPECT_THAT(error_of(TlsContext::for_agent({.cert = {}, .key = all_.key, .ca = {}})),
              HasSubstr("--rdzv-tls-key: needs --rdzv-tls-cert"));
  EXPECT_THAT(
      error_of(TlsContext::for_service({.cert = all_.cert, .key = all_.key, .ca = "system"})),
      HasSubstr("'system' would admit every node"));
}

TEST_F(TlsContextTest, AFileThatCannotBeReadIsNamedWithTheSystemsWord) {
  const std::string nothing = directory_ / "nothing";
  const auto with = [&](std::string TlsFiles::*which) {
    TlsFiles files = all_;
    files.*which = nothing;
    const auto found = TlsContext::for_service(files);
    EXPECT_NE(found.error().kind, ErrorKind::kInvalidArgument);
    return error_of(found);
  };
  EXPECT_THAT(with(&TlsFiles::cert),
              HasSubstr("--rdzv-tls-cert: read the certificate in " + nothing + ": No such file"));
  EXPECT_THAT(with(&TlsFiles::key), HasSubstr("--rdzv-tls-key: read the key in " + nothing));
  EXPECT_THAT(with(&TlsFiles::ca), HasSubstr("--rdzv-tls-ca: read the authorities in " + nothing));
}

TEST_F(TlsContextTest, AFileWithSomethingElseInItIsNamedWithOpensslsReason) {
  const std::string garbage = directory_.write("garbage", "no PEM at all\n");
  for (const auto which : {&TlsFiles::cert, &TlsFiles::key, &TlsFiles::ca}) {
    TlsFiles files = all_;
    files.*which = garbage;
    const auto found = TlsContext::for_service(files);
    EXPECT_EQ(found.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(error_of(found), HasSubstr(garbage + ": "));
  }
}

TEST_F(TlsContextTest, AKeyOfAnotherCertificateIsRefused) {
  TlsFiles files = all_;
  files.key = authority_.issue("other").key;
  EXPECT_THAT(error_of(TlsContext::for_service(files)),
              HasSubstr(files.key + ": not the key of the certificate in " + files.cert));
}

TEST_F(TlsContextTest, AKeyThatOthersCanReadIsRemarkedOn) {
  ASSERT_EQ(chmod(node_.key.c_str(), 0640), 0);
  EXPECT_EQ(TlsContext::for_agent(all_)->remark,
            "other users can read the key in " + node_.key + ": chmod 600 " + node_.key);
}

}  // namespace
}  // namespace ddprun
