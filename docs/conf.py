"""Sphinx's settings for the site. scripts/docs prepares the sources and runs Sphinx."""
import os

project = "ddprun"
version = release = os.environ["DDPRUN_VERSION"]
copyright = "the ddprun authors"  # noqa: A001 (Sphinx's name)

extensions = ["myst_parser", "breathe"]
root_doc = "docs/index"
nitpicky = False  # C++ names of LibTorch have no page here
suppress_warnings = ["duplicate_declaration.cpp"]  # each page of a header declares the namespace
show_warning_types = True
smartquotes = False  # "--option" keeps its hyphens

myst_heading_anchors = 4  # the anchors that GitHub makes
myst_links_external_new_tab = False

breathe_projects = {"ddprun": os.environ["DDPRUN_DOXYGEN_XML"]}
breathe_default_project = "ddprun"
breathe_show_include = False

html_theme = "furo"
html_title = f"ddprun {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = [os.path.join(os.path.dirname(__file__), "site.css")]
html_css_files = ["site.css"]
pygments_style = "friendly"
highlight_language = "none"  # for blocks that name no language
