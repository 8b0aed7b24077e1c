"""Renders chat templates with transformers' own Jinja2 setup, as the reference for crates/tokenizer's tests.

The templates in this file have the published prompt formats of model families.

    .venv/bin/python scripts/goldens/chat_templates.py
"""

import datetime
import json
import pathlib

from transformers.utils import chat_template_utils

DATA = pathlib.Path(__file__).resolve().parents[2] / "crates" / "tokenizer" / "tests" / "data"
OUT = DATA / "chat_templates.json"
NOW_UNIX_S = 1_752_000_000  # 2025-07-08 18:40:00 UTC


class FixedClock(datetime.datetime):
    """The time that strftime_now sees."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW_UNIX_S, datetime.timezone.utc).replace(tzinfo=None)


CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant' }}
{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + (date_string if date_string is defined else strftime_now("%d %b %Y")) + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You may call these functions. Answer with JSON for a call.\\n\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif message.tool_calls is defined and message.tool_calls | length > 0 %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message.content is string %}
            {{- message.content | trim }}
        {%- else %}
            {%- for part in message.content %}{{ part.text if part.type == 'text' }}{% endfor %}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and message == user_messages[-1] %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id + '"}' }}
        {{- "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial system!") }}
    {%- endif %}
{%- endfor %}
"""

QWEN25 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- else %}
        {{- 'You are a helpful assistant.\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nFunctions you may call are described within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nA call is a JSON object within <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

QWEN3 = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

GEMMA2 = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

PHI3 = """\
{% for message in messages %}
{% if message['role'] == 'system' %}
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}
{%- elif message['role'] == 'user' %}
{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}
{%- elif message['role'] == 'assistant' %}
{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}
{%- endif %}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|assistant|>\\n' -}}
{% else %}
{{- eos_token -}}
{% endif %}
"""

DEEPSEEK = """\
{%- set state = namespace(open_results=false, preamble=[]) -%}
{{ bos_token }}
{%- for message in messages if message.role == 'system' %}{{ message.content }}{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor -%}
{%- for message in messages if message.role != 'system' -%}
    {%- if state.open_results and message.role != 'tool' -%}
        {{ '<｜tool▁outputs▁end｜>' }}{% set state.open_results = false %}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        {{ '<｜User｜>' ~ message.content }}
    {%- elif message.role == 'tool' -%}
        {{ '' if state.open_results else '<｜tool▁outputs▁begin｜>' }}{% set state.open_results = true %}
        {{- '<｜tool▁output▁begin｜>' ~ message['content'] ~ '<｜tool▁output▁end｜>' -}}
    {%- else -%}
        {%- set answer = message.content or '' -%}
        {{ '<｜Assistant｜>' ~ (answer.split('</think>') | last if '</think>' in answer else answer) }}
        {%- if message.tool_calls -%}
            {{ '<｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls -%}
                {{ '<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s' | format(call['type'], call['function']['name']) }}
                {{- '\\n```json\\n' + call['function']['arguments'] | tojson + '\\n```' + '<｜tool▁call▁end｜>' }}
            {%- endfor -%}
            {{ '<｜tool▁calls▁end｜>' }}
        {%- endif -%}
        {{ '<｜end▁of▁sentence｜>' }}
    {%- endif -%}
{%- endfor -%}
{%- if state.open_results %}{{ '<｜tool▁outputs▁end｜>' }}{% elif add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif -%}
"""

XML_TOOLS = """\
{%- macro extra(fields, handled) %}
    {%- for key in fields %}
        {%- if key not in handled %}
            {%- set name = key | replace("-", "_") | replace(" ", "_") %}
            {%- if fields[key] is mapping or (fields[key] is sequence and fields[key] is not string) %}
                {{- '\\n<' ~ name ~ '>' ~ (fields[key] | tojson | safe) ~ '</' ~ name ~ '>' }}
            {%- else %}
                {{- '\\n<' ~ name ~ '>' ~ (fields[key] | string) ~ '</' ~ name ~ '>' }}
            {%- endif %}
        {%- endif %}
    {%- endfor %}
{%- endmacro %}
{%- set loop_messages = messages[1:] if messages[0].role == "system" else messages %}
{{- "<|im_start|>system\\n" ~ (messages[0].content if messages[0].role == "system" else "You may call functions.") }}
{%- if tools is iterable and tools | length > 0 %}
    {{- "\\n\\n<tools>" }}
    {%- for tool in tools %}
        {%- set tool = tool.function if tool.function is defined else tool %}
        {{- '\\n<function>\\n<name>' ~ tool.name ~ '</name>' }}
        {%- if tool.description is defined %}{{- '\\n<description>' ~ (tool.description | trim) ~ '</description>' }}{%- endif %}
        {{- '\\n<parameters>' }}
        {%- if tool.parameters is mapping and tool.parameters.properties is defined %}
            {%- for name, fields in tool.parameters.properties | items %}
                {{- '\\n<parameter>\\n<name>' ~ name ~ '</name>' }}
                {%- if fields.type is defined %}{{- '\\n<type>' ~ (fields.type | string) ~ '</type>' }}{%- endif %}
                {{- extra(fields, ['name', 'type']) ~ '\\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {{- extra(tool.parameters, ['type', 'properties']) ~ '\\n</parameters>' ~ extra(tool, ['type', 'name', 'description', 'parameters']) ~ '\\n</function>' }}
    {%- endfor %}
    {{- "\\n</tools>" }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}{{- '\\n' ~ message.content | trim ~ '\\n' }}{%- endif %}
        {%- for call in message.tool_calls %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '\\n<tool_call>\\n<function=' ~ call.name ~ '>\\n' }}
            {%- for name, value in (call.arguments | default({})) | items %}
                {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                {{- '<parameter=' ~ name ~ '>\\n' ~ value ~ '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user\\n' }}{%- endif %}
        {{- '<tool_response>\\n' ~ message.content ~ '\\n</tool_response>\\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" or loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

HARMONY = """\
{%- macro type_of(spec) -%}
    {%- if spec.type == "object" -%}
        {{- "{\\n" }}
        {%- for name, inner in (spec.properties or {}).items() -%}
            {{- name + ("" if name in (spec.required or []) else "?") + ": " }}{{ type_of(inner) }}
            {%- if inner.default is defined %}{{- ", // default: " ~ (inner.default | tojson) }}{%- endif %}
            {{- ",\\n" }}
        {%- endfor -%}
        {{- "}" }}
    {%- elif spec.type == "integer" or spec.type == "number" -%}number
    {%- elif spec.type -%}{{ spec.type }}
    {%- else -%}any{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>Knowledge cutoff: 2024-06\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: " + reasoning_effort | default("medium") }}
{{- "\\n\\n# Valid channels: analysis, commentary, final.<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}{%- set developer = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set developer = "" %}{%- set loop_messages = messages %}{%- endif %}
{%- if developer or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer %}{{- "# Instructions\\n\\n" ~ developer ~ "\\n\\n" }}{%- endif %}
    {%- for tool in tools or [] %}{{- "// " ~ tool.function.description ~ "\\ntype " ~ tool.function.name ~ " = (_: " }}{{ type_of(tool.function.parameters) }}{{- ") => any;\\n" }}{%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == "assistant" -%}
        {%- if "tool_calls" in message -%}
            {%- set call = message.tool_calls[0].function %}
            {%- if message.thinking %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}{{ call.arguments | tojson }}{{ "<|call|>" }}
            {%- set last.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- set last.name = none %}{%- endif %}
    {%- elif message.role == "tool" -%}
        {%- if last.name is none %}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}{%- endif %}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
    {%- else -%}{{- "<|start|>" ~ message.role ~ "<|message|>" ~ message.content ~ "<|end|>" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

# Features of Jinja2 and Python that templates use beyond the families above.
LANGUAGE = """\
{%- macro row(name, value, sep=': ') %}{{ name }}{{ sep }}{{ value }};{% endmacro %}
{# a comment #}
{{ row('bool', true) }}{{ row('none', none, '=') }}{{ row('float', 1.0) }}{{ row('list', [1, 'a', "it's", none, false]) }}
{{ row('dict', {'b': 1.5, 'a': [true]}) }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
    {%- if message.role == 'assistant' %}{% generation %}[{{ message.content }}]{% endgeneration %}{% else %}
<{{ message.content | default('nothing', true) | upper }}>
    {%- endif %}
    {% if loop.last %}last{% endif %}

{% endfor %}
{%- set text %}captured {{ messages | length }}{% endset %}
{{ text | replace('captured', 'taken') }} {{ messages | map(attribute='role') | join(',') }}
{% for key, value in (options or {}) | dictsort %}{{ key }}={{ value }} {% endfor %}
{% raw %}{{ raw }}{% endraw %} {{ '%s-%05.2f' | format('x', 3.14159) }} {{ '{} and {}'.format(1, 'b') }}
{{ 'abc'[::-1] }} {{ 'a,b,c'.split(',')[1:] }} {{ ' x '.strip() ~ 1 ~ 2.50 }} {{ 'Title case'.title() }} {{ 7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }} {{ 2 ** 10 }}
{{ options | tojson }}
{{ options | tojson(indent=2) }}
{{ options | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}
{{ {'x': 1e-7, 'y': 1e16, 'z': 123456789.125, 'e': {}, 'l': []} | tojson(indent=1) }}
{{ strftime_now('%Y-%m-%d %H:%M, %A %-d %B') }}
{{ undefined_name }}|{{ undefined_name is defined }}|{{ messages[0].nothing is none }}|{{ 'x' if false }}|{{ undefined_name | length }}
{{ [3, 1, 2] | sort | list }} {{ [1, 2, 2] | unique | list }} {{ messages is iterable }} {{ none is iterable }} {{ 'a' is sequence }} {{ options is mapping }} {{ 1 is number }}
{{ bos_token }}{{ eos_token }}{{ additional_special_tokens[0] }}
{{ 'a\\n' | indent(2, first=true) }}|{{ 'a\\n\\nb\\r\\nc' | indent }}|{{ 'a\\n\\nb\\n' | indent('> ', true, true) }}|{{ '' | indent(width=3, first=true) }}|{{ 'a\\n' | indent(blank=true) }}|
{{ 'a\\nb\\n'.splitlines() }} {{ 'ab' * 3 }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ' a b  c '.rsplit() }} {{ ' a b  c '.rsplit(none, 1) }} {{ 'a.b.c'.rsplit('.') }} {{ ''.rsplit('.') }} {{ 'k: v'.split(': ', 1) | last }}
{{ 'a=b=c'.partition('=') | list }} {{ 'a=b=c'.rpartition('=') | list }} {{ 'abc'.partition('=') | list }} {{ 'abc'.rpartition('=') | list }} {{ 'ab'.removeprefix('a') }} {{ 'ab'.removesuffix('a') }} {{ '/x/'.removesuffix('/') }} {{ 'x'.join(['a', 'b']) }} {{ 'abcabc'.find('c') }} {{ 'Ab'.swapcase() if false else 'Ab'.lower() }}
{{ [[1, 2], [3]] | sum(start=[]) if false else [1, 2] | sum }} {{ messages | selectattr('role', 'in', ['user']) | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}
{{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.items() | map('first') | list }} {{ {'a': 1, 'b': none} | items | map('last') | list }} {{ dict(a=1, b='x') }} {{ range(1, 8, 3) | list }} {{ [1, 2, 3] | first }} {{ 'abc' | list }}
{{ 3 | string + '!' }} {{ '5' | int + 1 }} {{ '1.5' | float }} {{ 2.5 | round | int }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ 'éÀ' | upper | lower | capitalize }} {{ '<a>' | e }} {{ 'x' is in ['x'] }} {{ 1 == 1.0 }} {{ not none }}
"""

CONFIG = {
    "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "special": True},
    "eos_token": "</s>",
    "pad_token": None,
    "additional_special_tokens": ["<|role|>", {"content": "<|end|>"}],
}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<|role|>", "<|end|>"]}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"later\" in a city's centre, ü 日本",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 7, "default": 1.5}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "parameters": {}, "description": "Nothing"}},
]


def call(identifier: str, arguments) -> dict:
    return {"id": identifier, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


TOOL_TURNS = [
    {"role": "user", "content": "Weather in Bern?"},
    {"role": "assistant", "content": None, "tool_calls": [call("abcdefgh1", {"city": "Bern", "days": 2, "z": [1.0, None]})]},
    {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefgh1", "content": '{"celsius": 21}'},
]
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello <you> & 'me' \"ü\" 日本 🎈"}],
    "system": [
        {"role": "system", "content": "You are brief.\n"},
        {"role": "user", "content": " Hi \n"},
        {"role": "assistant", "content": "Hello!  "},
        {"role": "user", "content": "1+1?"},
    ],
    "answered": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nB is"},
    ],
    "trailing_space": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "So \n"}],
    "tools": TOOL_TURNS,
    "tools_answered": [*TOOL_TURNS, {"role": "assistant", "content": "21 degrees."}, {"role": "user", "content": "Thanks"}],
    "reasoning": [{"role": "user", "content": "Q"}, {"role": "assistant", "reasoning": "because\n", "content": "X"}],
    "two_users": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
}

# Template, conversations (each with its end), whether to try tools, further variables.
FAMILIES = {
    "chatml": (CHATML, ["one", "system", "answered", "trailing_space"], False, [{}]),
    "llama3": (LLAMA3, ["one", "system", "tools", "tools_answered", "trailing_space"], True, [{}, {"date_string": "26 Jul 2024"}]),
    "mistral": (MISTRAL, ["one", "system", "tools", "tools_answered", "two_users"], True, [{}]),
    "qwen2.5": (QWEN25, ["one", "system", "tools", "tools_answered", "answered"], True, [{}]),
    "qwen3": (QWEN3, ["one", "system", "tools", "answered", "reasoning"], False, [{}, {"enable_thinking": False}]),
    "gemma2": (GEMMA2, ["one", "system", "answered", "trailing_space", "two_users"], False, [{}]),
    "phi3": (PHI3, ["one", "system", "answered"], False, [{}]),
    "deepseek": (DEEPSEEK, ["system", "tools", "tools_answered", "answered"], False, [{}]),
    "xml_tools": (XML_TOOLS, ["one", "system", "tools", "tools_answered"], True, [{}]),
    "harmony": (HARMONY, ["system", "tools", "tools_answered", "reasoning"], True, [{}, {"reasoning_effort": "high"}]),
    "language": (LANGUAGE, ["system", "answered"], False, [{"options": None}, {"options": {"b": "é🎈</>'\u007f\u0001", "a": {"k": [1, 2.5, None, True]}}}]),
}


def render(template: str, conversation: str, tools, end: str, variables: dict) -> dict:
    """The case with transformers' result. `apply_chat_template` drops null fields, so this does too."""
    case = {"conversation": conversation, "has_tools": tools is not None, "end": end, "kwargs": variables}
    messages = [
        {key: value for key, value in message.items() if value is not None} for message in CONVERSATIONS[conversation]
    ]
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=end == "generation_prompt",
            continue_final_message=end == "continue_final_message",
            **{**SPECIAL_TOKENS, **variables},
        )
    except Exception as error:  # any error means that the template refuses the conversation
        return {**case, "error": str(error).splitlines()[0]}
    return {**case, "expected": rendered[0]}


def main() -> None:
    chat_template_utils.datetime = FixedClock
    families = []
    for name, (template, conversations, with_tools, all_variables) in FAMILIES.items():
        cases = []
        for conversation in conversations:
            is_answered = CONVERSATIONS[conversation][-1]["role"] == "assistant"
            ends = ["generation_prompt", "last_message"] + (["continue_final_message"] if is_answered else [])
            for end in ends:
                for tools in [None, TOOLS] if with_tools else [None]:
                    for variables in all_variables:
                        cases.append(render(template, conversation, tools, end, variables))
        families.append({"name": name, "template": template, "cases": cases})
        print(f"{name}: {len(cases)} cases, {sum('error' in case for case in cases)} refused")
    document = {
        "now_unix_s": NOW_UNIX_S,
        "tokenizer_config": CONFIG,
        "conversations": CONVERSATIONS,
        "tools": TOOLS,
        "families": families,
    }
    OUT.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
