# What a release consists of.  Products go to build/packages; the same commit gives the same bytes.

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
