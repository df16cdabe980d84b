# What a release consists of: completions, the source archive, the wheel, the Debian packages, the documents as
# HTML and the list of their parts (SBOM).  Products go to build/packages; the same commit gives the same bytes.

PACKAGES_DIR := build/packages
DIST         := $(PACKAGES_DIR)/vptq-$(VERSION).tar.gz
ifeq ($(origin SOURCE_DATE_EPOCH),undefined)
SOURCE_DATE_EPOCH := $(shell scripts/commit.sh --date)
endif
export SOURCE_DATE_EPOCH

# Completions are written from the help of the tools.
COMPLETIONS := $(TOOLS:%=bash-completion/completions/%) $(TOOLS:%=zsh/site-functions/_%) \
               $(TOOLS:%=fish/vendor_completions.d/%.fish)
.PHONY: completions
completions: $(B)/completions.done
$(B)/completions.done: $(TOOLS:%=$(RUN_BIN)/%) $(wildcard packaging/completions*)
	$(Q)packaging/completions.sh $(RUN_BIN) $(B)
	$(Q)touch $@

.PHONY: dist
dist:
	$(Q)packaging/dist.sh $(VERSION) $(DIST)
	@echo $(DIST)

# Static tools as a Python package; the libraries in them come with their licenses, where Debian has them.
LIB_DOCS := libjansson-dev libpcre2-dev libzstd-dev libxxhash-dev libutf8proc-dev libssl-dev zlib1g-dev libc6-dev
LICENSES := LICENSE calibration-text=share/README.md calibration-articles=share/ARTICLES.txt \
            $(foreach lib,$(LIB_DOCS),$(patsubst %,$(lib)=%,$(wildcard /usr/share/doc/$(lib)/copyright))) \
            $(patsubst %,libgomp=%,$(firstword $(wildcard /usr/share/doc/gcc-*-base/copyright)))
.PHONY: wheel run-wheel
wheel:
	+$(Q)$(MAKE) STATIC=1 run-wheel
run-wheel: sbom
	+$(Q)rm -rf $(B)/stage && $(MAKE) -s install-tools DESTDIR=$(CURDIR)/$(B)/stage PREFIX=
	$(Q)python3 packaging/wheel.py $(B)/stage $(PACKAGES_DIR) vptq-tools $(VERSION) manylinux_2_17_$(ARCH) README.md \
		$(B)/vptq.spdx.json $(LICENSES)

.PHONY: sbom
sbom: | $(B)/probe
	$(Q)CC='$(CC)' PKG='$(PKG)' SYSROOT='$(if $(CROSS),$(SYSROOT))' packaging/sbom.sh $(VERSION) $(COMMIT) $(PACKAGES) >$(B)/vptq.spdx.json

# Debian packages, built from the source archive.
.PHONY: deb
deb: dist
	$(Q)packaging/deb.sh $(VERSION) $(DIST) $(PACKAGES_DIR)

# Manual pages and documents as HTML.
.PHONY: docs
docs: man
	$(Q)packaging/docs.sh $(B)/man build/docs
