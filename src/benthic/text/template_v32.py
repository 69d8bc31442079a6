"""The chat template that DeepSeek-V3.2's folder lacks: plain conversations as its own encoder writes them."""

V32_TEMPLATE = """\
{{- bos_token -}}
{%- set count = namespace(users=0, seen=0) -%}
{%- for message in messages if message.role == 'user' -%}{%- set count.users = loop.index -%}{%- endfor -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}
    {{- message.content -}}
  {%- elif message.role == 'user' -%}
    {%- set count.seen = count.seen + 1 -%}
    {{- '<｜User｜>' + message.content + '<｜Assistant｜>' -}}
    {{- '<think>' if thinking and count.seen == count.users else '</think>' -}}
  {%- else -%}
    {{- message.content + eos_token -}}
  {%- endif -%}
{%- endfor -%}
"""
"""Equal to encoding_dsv32.py without tools; reasoning of earlier turns is dropped there, too."""
